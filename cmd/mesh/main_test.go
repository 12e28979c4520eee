package main

import (
	"crypto/ed25519"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/pki"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"mesh": main}) }

// OP-1: the commands as one types them. What needs a mesh is told in lab/scenarios.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("MESH_STATE", filepath.Join(env.WorkDir, "state"))
			return nil
		},
		Condition: func(name string) (bool, error) { return name == "root" && os.Geteuid() == 0, nil },
		Cmds:      map[string]func(*testscript.TestScript, bool, []string){"code": code, "credential": credentialFor},
	})
}

// code (code N PROGRAM ARGUMENT…) runs a program, which must end with N.
func code(ts *testscript.TestScript, _ bool, args []string) {
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if args[0] != strconv.Itoa(got) {
		ts.Fatalf("exit code %d, want %s\n%s%s", got, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// credentialFor (credential FOLDER BROKER) makes an operator's credential for a hub at an address.
func credentialFor(ts *testscript.TestScript, _ bool, args []string) {
	keys, err := identity.GenerateMesh()
	ts.Check(err)
	mesh := appliance.NewMeshID()
	der, err := pki.NewAuthority(mesh, keys.Authority, time.Now())
	ts.Check(err)
	_, signing, err := ed25519.GenerateKey(nil)
	ts.Check(err)
	bus, err := nkeys.CreateUser()
	ts.Check(err)
	seed, err := bus.Seed()
	ts.Check(err)
	path := installation.Installation{Dir: ts.MkAbs(args[0])}.Operator()
	ts.Check(os.MkdirAll(filepath.Dir(path), 0o700))
	ts.Check(operators.WriteCredential(path, operators.Credential{Mesh: mesh, MeshName: "home", Operator: appliance.NewOperatorID(), Name: "admin", Role: operators.Admin,
		Broker: []string{args[1]}, Authority: der, Signing: keys.Signing.Public().(ed25519.PublicKey), Key: signing.Seed(), Bus: string(seed)}))
}
