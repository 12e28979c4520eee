package services

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/installation"
)

// GEN-8: what the agent brought up outlives its unit, which starts with the machine and is kept up; every installation has its own.
func TestUnit(t *testing.T) {
	here, there := installation.Installation{Dir: installation.Default}, installation.Installation{Dir: "/srv/mesh"}
	text := Unit(there)
	for _, line := range []string{"ExecStart=/srv/mesh/bin/mesh agent --state /srv/mesh", "KillMode=process", "Restart=always", "StartLimitIntervalSec=0", "WantedBy=multi-user.target"} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
	if systemd.unit(systemd{here}) != "mesh-agent.service" || systemd.unit(systemd{there}) == "mesh-agent.service" {
		t.Errorf("units %s and %s", systemd{here}.unit(), systemd{there}.unit())
	}
}

// GEN-8
func TestScript(t *testing.T) {
	text := Script(installation.Installation{Dir: "/srv/mesh"})
	for _, piece := range []string{"#!/sbin/openrc-run\n", "\t/srv/mesh/bin/mesh start --state /srv/mesh\n", "\t/srv/mesh/bin/mesh stop --state /srv/mesh\n"} {
		if !strings.Contains(text, piece) {
			t.Errorf("no %q in\n%s", piece, text)
		}
	}
}

// GEN-3: the installation runs a copy of this binary; the same bytes are left alone, others replaced as one.
func TestInstallBinary(t *testing.T) {
	i := installation.Installation{Dir: filepath.Join(t.TempDir(), "mesh")}
	if err := InstallBinary(i); err != nil {
		t.Fatal(err)
	}
	first, err := os.Stat(i.Binary())
	if err != nil || first.Mode().Perm() != 0o755 {
		t.Fatalf("%v, %v", first.Mode(), err)
	}
	if err := InstallBinary(i); err != nil {
		t.Fatal(err)
	}
	if second, err := os.Stat(i.Binary()); err != nil || !os.SameFile(first, second) {
		t.Errorf("the same bytes were replaced: %v", err)
	}
	if err := os.WriteFile(i.Binary(), []byte("another"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := InstallBinary(i); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, _ := sum(self)
	if got, err := sum(i.Binary()); err != nil || got != want {
		t.Errorf("other bytes were left: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(i.Binary()), "*")); len(left) != 1 {
		t.Errorf("left %v", left)
	}
}

// NODE-3: what lies beside the running binary is handed out to machines of the kind that its name says, and to no others.
func TestOtherBinaries(t *testing.T) {
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	built := func(machine elf.Machine) []byte {
		header := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Phentsize: 56, Shentsize: 64}
		copy(header.Ident[:], elf.ELFMAG)
		header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA], header.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
		var b bytes.Buffer
		if err := binary.Write(&b, binary.LittleEndian, header); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	for name, c := range map[string]struct {
		file    []byte
		found   int
		refused bool
	}{
		"none":                {nil, 0, false},
		"right":               {built(elfMachines[other]), 1, false},
		"this machine's":      {built(elfMachines[runtime.GOARCH]), 0, true},
		"not a binary at all": {[]byte("#!/bin/sh\n"), 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, installation.OtherBinary(other))
			if c.file != nil {
				if err := os.WriteFile(path, c.file, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			found, err := besides(filepath.Join(dir, "mesh"))
			if len(found) != c.found || c.found == 1 && found[other] != path {
				t.Errorf("found %v", found)
			}
			if (err != nil) != c.refused || err != nil && (!strings.Contains(err.Error(), path+": it is no linux/"+other+" binary") || appliance.AsError(err).Hint == "") {
				t.Error(err)
			}
		})
	}
}

// A folder is given away with everything in it, and nothing that a link in it leads to.
func TestOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away needs root: run the tests as root, as .ci/run does")
	}
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Own(dir, "nobody"); err != nil {
		t.Fatal(err)
	}
	nobody := owner(t, filepath.Join(dir, "a", "b"))
	if nobody == 0 || owner(t, dir) != nobody || owner(t, filepath.Join(dir, "link")) != nobody {
		t.Errorf("owners %d, %d", nobody, owner(t, dir))
	}
	if owner(t, outside) != 0 {
		t.Error("followed a link")
	}
	if err := Own(dir, "no-such-user"); err == nil {
		t.Error("gave to nobody known")
	}
}

// SAFE-3: who had the folder before may have left a second name of a file of root's in it, and changes it while it is given away.
func TestOwnIsNotLedAstray(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away needs root: run the tests as root, as .ci/run does")
	}
	top := t.TempDir()
	dir, outside := filepath.Join(top, "dir"), filepath.Join(top, "outside")
	for _, d := range []string{filepath.Join(dir, "a"), outside} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(dir, "second")
	if err := os.Link(secret, second); err != nil {
		t.Fatal(err)
	}
	if err := Own(dir, "nobody"); err == nil || owner(t, secret) != 0 {
		t.Errorf("a file with a name elsewhere: %v, owner %d", err, owner(t, secret))
	}
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}

	// A folder and a link to outside change places all the while.
	link := filepath.Join(top, "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "a"), unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 3000 {
		if err := Own(dir, "nobody"); err != nil {
			t.Errorf("while it changes: %v", err)
			break
		}
		if owner(t, secret) != 0 {
			t.Error("gave away what a link led to")
			break
		}
		if err := os.Chown(dir, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-stopped
}

func owner(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid
}

// NODE-8: nothing starts the agent any more, and what is another installation's stays.
func TestRemove(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	i, other := installation.Installation{Dir: dir}, installation.Installation{Dir: "/srv/mesh"}
	script, level := filepath.Join(root, openrcScript), filepath.Join(root, openrcLevel)
	for _, path := range []string{script, level} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		whose installation.Installation
		link  bool
		left  int
	}{"ours": {i, true, 0}, "ours, half removed": {i, false, 0}, "another's": {other, true, 2}} {
		if err := os.WriteFile(script, []byte(Script(c.whose)), 0o755); err != nil {
			t.Fatal(err)
		}
		if c.link {
			if err := os.Symlink(openrcScript, level); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := (openrc{detached{i}, root}).Remove(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		left := 0
		for _, path := range []string{script, level} {
			if _, err := os.Lstat(path); err == nil {
				left++
			}
			os.Remove(path)
		}
		if left != c.left {
			t.Errorf("%s: %d files are left, want %d", name, left, c.left)
		}
	}
}
