# Mesh: `make` shows what there is to do.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export PATH := $(PATH):/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin
export CGO_ENABLED ?= 0

# The build date is the commit's, so that the same commit gives the same bytes.
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unversioned)
BUILD_DATE ?= $(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || date -u +%Y-%m-%dT%H:%M:%SZ)
BUILD      := go build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$(VERSION) -X github.com/novox/mesh/appliance/pki.built=$(BUILD_DATE)"

# A hub hands its binary out to machines of both architectures.
OTHER := $(if $(filter aarch64,$(shell uname -m)),amd64,arm64)

PREFIX   ?= /usr/local
NAME     ?= $(shell hostname -s | tr A-Z a-z)
ENDPOINT ?= $(firstword $(shell hostname -I 2>/dev/null))

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
TIMEOUT     ?= 30m
FUZZTIME    ?= 30s
# Where goroutines share state: these run under the race detector, and everything else without, where it only costs time.
RACE := $(patsubst %,./%/...,$(wildcard appliance/agent appliance/bus appliance/controller appliance/appliancetest embedded/natsd embedded/registry))

.PHONY: help build genesis test packages lint generate bench fuzz clean

help: ## show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

build: ## bin/mesh and bin/lab for this machine, bin/mesh-linux-… for machines of the other architecture
	$(BUILD) -o bin/mesh ./cmd/mesh
	GOARCH=$(OTHER) $(BUILD) -o bin/mesh-linux-$(OTHER) ./cmd/mesh
	$(BUILD) -o bin/lab ./cmd/lab

genesis: build ## make this machine the hub of a mesh (NAME=, ENDPOINT=, ARGS=)
	@if [ "$$(id -u)" -ne 0 ]; then echo "error: genesis changes this machine and needs root" >&2; echo "hint: sudo make genesis" >&2; exit 3; fi
	@if [ -z "$(ENDPOINT)" ]; then echo "error: this machine has no address that others could reach" >&2; echo "hint: make genesis ENDPOINT=HOST" >&2; exit 3; fi
	@echo "This installs $(PREFIX)/bin/mesh and runs: bin/mesh genesis --name $(NAME) --endpoint $(ENDPOINT) --yes $(ARGS)"
	@echo "Genesis installs PostgreSQL from this distribution where there is none, without a cluster of the package's own."
	install -D -m 0755 bin/mesh $(PREFIX)/bin/mesh
	bin/mesh genesis --name "$(NAME)" --endpoint "$(ENDPOINT)" --yes $(ARGS)

packages: ## install what the tests need, saying what
	@.ci/packages
	@.ci/older-postgres

test: packages lint ## every test that runs here, the lab included
	CGO_ENABLED=1 go test -race -count=1 -timeout $(TIMEOUT) $(RACE)
	raced=$$(go list $(RACE)); others=$$(go list ./... | grep -vxF "$$raced"); go test -count=1 -timeout $(TIMEOUT) $$others

lint: ## gofmt, vet, staticcheck
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "error: not formatted: $$unformatted" >&2; echo "hint: gofmt -w ." >&2; exit 1; fi
	go vet ./...
	@if ! CGO_ENABLED=0 go run $(STATICCHECK) -version; then echo "skipped: $(STATICCHECK) can be neither found nor fetched"; \
	else echo go run $(STATICCHECK) ./...; go run $(STATICCHECK) ./...; fi

generate: ## write generated files anew; fails where they were not what they should be
	@before=$$(git status --porcelain; git diff); go generate ./...; after=$$(git status --porcelain; git diff); \
	if [ "$$before" != "$$after" ]; then echo "error: generated files were out of date; commit what changed:" >&2; git status --short >&2; exit 1; fi

bench: ## benchmarks (not part of the tests)
	go test -run '^$$' -bench . -benchmem -timeout $(TIMEOUT) ./...

fuzz: ## every fuzz target for FUZZTIME
	@.ci/fuzz $(FUZZTIME)

clean: ## remove what was built
	rm -rf bin
