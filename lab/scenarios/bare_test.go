package scenarios

import (
	"bytes"
	"context"
	"crypto/tls"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/downloads"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// bareLines are those of a bare machine, as `mesh token create` gives them.
type bareLines struct {
	Token        string
	Curl, Serves []string
}

var curlLine = regexp.MustCompile(`(?m)^  (curl .* join mesh1\.[A-Za-z0-9_-]+)$`)

// NODE-3, GEN-7, SAFE-4: a machine that has curl and nothing of the mesh becomes a node by the line that the hub printed, given as it
// stands. The line holds over restarts of the hub, and for as long as the download server's key; who has another key is refused before
// anything of theirs is asked for or run.
func TestBareMachine(t *testing.T) {
	bed := up(t, beds.Three)
	hub, n1, n2 := bed.Host("hub"), bed.Host("n1"), bed.Host("n2")
	mesh, err := meshBinary()
	if err != nil {
		t.Fatal(err)
	}
	put(t, hub, mesh, beds.Binary)
	other := foreignBinary(t, hub)
	screen := run(t, hub, line("genesis", "--name", "lab", "--endpoint", hub.Address.String(), "--yes")...)
	lines := curlLine.FindAllStringSubmatch(screen, -1)
	if len(lines) != 1 || !strings.Contains(screen, "A bare one with curl (linux amd64 or arm64):") {
		t.Fatalf("the closing screen has %d lines for a bare machine:\n%s", len(lines), screen)
	}
	if _, err := n1.Get(t.Context(), beds.Binary); err == nil {
		t.Fatal("n1 has a mesh binary")
	}

	begun := time.Now()
	said := run(t, n1, "sh", "-c", lines[0][1])
	if !strings.Contains(said, "This machine is node n1 of mesh lab") {
		t.Errorf("the line said %q", said)
	}
	t.Logf("a node after %.1f s", time.Since(begun).Seconds())
	waitFor(t, "n1 is current", 20*time.Second, func() string { return notCurrent(t.Context(), hub, 2, time.Time{}) })
	if got := run(t, n1, "ls", filepath.Dir(beds.Binary)); strings.Contains(got, "mesh.new") {
		t.Errorf("left in the folder of programs: %s", got)
	}

	var made bareLines
	if err := ask(t.Context(), hub, &made, "token", "create"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wire.Architectures, made.Serves); diff != "" || len(made.Curl) != 1 {
		t.Fatalf("%d lines; served (-want +got):\n%s", len(made.Curl), diff)
	}
	t.Run("impostor", func(t *testing.T) {
		impersonate(t, n1, statusOf(t, hub).Mesh.ID)
		changesNothing(t, bed, n2, func() {
			theirs := strings.Replace(made.Curl[0], hub.Address.String(), n1.Address.String(), 1)
			wantCurl(t, n2, theirs, 90, "public key does not match pinned public key")
		})
	})
	t.Run("another kind of machine", func(t *testing.T) {
		changesNothing(t, bed, n2, func() {
			wantCurl(t, n2, "uname() { echo armv7l; }; "+made.Curl[0], 22, "error: 404")
		})
	})
	restart := func(nodes int) {
		begun := time.Now()
		run(t, hub, line("stop")...)
		run(t, hub, line("start")...)
		waitFor(t, "the hub is back", 20*time.Second, func() string { return notCurrent(t.Context(), hub, nodes, begun) })
	}
	t.Run("after a restart of the hub", func(t *testing.T) {
		restart(2)
		// What is made for the other machine is what lay beside the hub's binary; it does not run here.
		asOther, _, _ := strings.Cut(made.Curl[0], " && "+beds.Binary+" join")
		run(t, n2, "sh", "-c", "uname() { echo "+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[other]+"; }; "+asOther)
		if got, err := n2.Get(t.Context(), beds.Binary); err != nil || !bytes.Equal(got, foreign(t, other)) {
			t.Errorf("%d bytes for the other machine: %v", len(got), err)
		}
		if said := run(t, n2, "sh", "-c", made.Curl[0]); !strings.Contains(said, "This machine is node n2 of mesh lab") {
			t.Errorf("the line said %q", said)
		}
	})
	t.Run("after the key was changed", func(t *testing.T) {
		run(t, hub, "rm", "/var/lib/mesh/hub/keys/downloads.key")
		restart(3)
		var again bareLines
		if err := ask(t.Context(), hub, &again, "token", "create"); err != nil {
			t.Fatal(err)
		}
		wantCurl(t, n2, made.Curl[0], 90, "public key does not match pinned public key")
		if said := run(t, n2, "sh", "-c", again.Curl[0]); !strings.Contains(said, "node n2 of mesh lab already") {
			t.Errorf("the new line said %q", said)
		}
	})
}

// wantCurl gives a line that curl must end with a code and a reason.
func wantCurl(t *testing.T, host *netns.Host, line string, code int, says string) {
	t.Helper()
	out, errs, got, err := host.Run(t.Context(), "sh", "-c", line)
	if err != nil || got != code || !strings.Contains(errs, says) || strings.Contains(out+errs, "I ran") || strings.Contains(errs, "reaching the hub") {
		t.Errorf("exit code %d, want %d: %v\n%s%s", got, code, err, out, errs)
	}
}

// foreign is as much of a binary for another machine as tells what it is for.
func foreign(t *testing.T, architecture string) []byte {
	t.Helper()
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[architecture]
	header := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Phentsize: 56, Shentsize: 64}
	copy(header.Ident[:], []byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)})
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, header); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// foreignBinary puts the binary of the other architecture beside the hub's.
func foreignBinary(t *testing.T, hub *netns.Host) (architecture string) {
	t.Helper()
	architecture = "arm64"
	if runtime.GOARCH == architecture {
		architecture = "amd64"
	}
	path := filepath.Join(filepath.Dir(beds.Binary), installation.OtherBinary(architecture))
	if err := hub.Put(t.Context(), path, foreign(t, architecture), 0o755); err != nil {
		t.Fatal(err)
	}
	return architecture
}

// impersonate leaves a host answering as the mesh's hub would. It outlives the command, as a daemon.
func impersonate(t *testing.T, host *netns.Host, mesh string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	put(t, host, self, probePath)
	if err := host.Command(t.Context(), "setsid", "--fork", probePath, probeCommand, "impersonate", mesh).Run(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, host.Name+" impersonates the hub", 5*time.Second, func() string {
		if out, errs, code, _ := host.Run(t.Context(), "curl", "-sk", "https://127.0.0.1:4280/mesh/x86_64"); code != 0 || !strings.Contains(out, "I ran") {
			return fmt.Sprintf("curl ends with %d: %s%s", code, out, errs)
		}
		return ""
	})
}

// impersonated is a download server with the mesh's names in its certificates, a binary of its own, and keys of its own.
func impersonated(mesh appliance.MeshID) error {
	dir, err := os.MkdirTemp("", "impostor-")
	if err != nil {
		return err
	}
	key, err := identity.ServerKey(dir, "downloads")
	if err != nil {
		return err
	}
	authorityKey, err := identity.ServerKey(dir, "authority")
	if err != nil {
		return err
	}
	der, err := pki.NewAuthority(mesh, authorityKey, time.Now())
	if err != nil {
		return err
	}
	authority, err := pki.LoadAuthority(mesh, der, authorityKey)
	if err != nil {
		return err
	}
	leaf, err := authority.Issue(pki.Request{Public: &key.PublicKey, Names: []string{pki.DownloadsName(mesh)}, Usage: pki.Server, Now: time.Now()})
	if err != nil {
		return err
	}
	certificate, err := pki.Chain(leaf, der, key)
	if err != nil {
		return err
	}
	tampered := filepath.Join(dir, "mesh")
	if err := os.WriteFile(tampered, []byte("#!/bin/sh\necho I ran\n"), 0o755); err != nil {
		return err
	}
	s, err := downloads.New(4280, &key.PublicKey, map[string]string{"amd64": tampered, "arm64": tampered})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp4", ":4280")
	if err != nil {
		return err
	}
	return s.Serve(context.Background(), l, &tls.Config{Certificates: []tls.Certificate{*certificate}})
}
