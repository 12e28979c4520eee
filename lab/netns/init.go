package netns

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// InitCommand is the first argument under which a program that raises beds must call Init: the first process of every
// host is that program itself.
const InitCommand = "init"

// Descriptors the first process is started with.
const (
	readyFD = 3 // it says "ready", or what went wrong
	leashFD = 4 // ends when the bed's owner does
)

// boot tells the first process what to raise.
type boot struct {
	Hostname string   `json:"hostname"`
	Folder   string   `json:"folder,omitempty"` // of the host; empty: a switch, which has no disk of its own
	Hide     string   `json:"hide,omitempty"`   // the folder of all beds, kept from the host's sight
	Without  []string `json:"without,omitempty"`
	First    bool     `json:"first,omitempty"`
	Leashed  bool     `json:"leashed,omitempty"`
	Cgroups  []string `json:"cgroups,omitempty"` // where the machine mounts cgroup2
}

// Init is the first process of a host: it mounts, says that it is ready, and reaps until it is ended. It returns the
// exit code.
func Init(args []string) int {
	ready := os.NewFile(readyFD, "ready")
	if ready == nil || len(args) != 1 {
		fmt.Fprintln(os.Stderr, "error: init is the first process of a lab host; only the lab starts it")
		return 2
	}
	var b boot
	err := json.Unmarshal([]byte(args[0]), &b)
	if err == nil {
		err = b.raise()
	}
	if err != nil {
		fmt.Fprint(ready, err.Error())
		return 1
	}
	fmt.Fprint(ready, "ready")
	ready.Close()
	b.reap()
	return 0
}

func (b boot) raise() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := unix.Sethostname([]byte(b.Hostname)); err != nil {
		return fmt.Errorf("set host name %s: %w", b.Hostname, err)
	}
	if b.Folder == "" {
		return nil
	}
	root := filepath.Join(b.Folder, "root")
	if err := b.mountAll(root); err != nil {
		return err
	}
	if err := b.personal(root); err != nil {
		return err
	}
	return enter(root)
}

// mountAll builds the host's tree of mounts under root.
func (b boot) mountAll(root string) error {
	overlay := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", filepath.Join(b.Folder, "upper"), filepath.Join(b.Folder, "work"))
	if err := mount("overlay", "overlay", root, 0, overlay); err != nil {
		return err
	}
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	fresh := []struct {
		kind, path, data string
		flags            uintptr
	}{
		{"proc", "/proc", "", quiet},
		{"sysfs", "/sys", "", quiet},
		{"tmpfs", "/run", "mode=0755", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/tmp", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/dev", "mode=0755", unix.MS_NOSUID},
	}
	for _, m := range fresh {
		if err := mount(m.kind, m.kind, root+m.path, m.flags, m.data); err != nil {
			return err
		}
	}
	if err := devices(root + "/dev"); err != nil {
		return err
	}
	if err := os.Mkdir(root+"/run/lock", 0o1777); err != nil {
		return err
	}
	if err := b.controlGroups(root); err != nil {
		return err
	}
	if _, err := os.Stat(root + b.Hide); err == nil {
		return mount("tmpfs", "tmpfs", root+b.Hide, 0, "mode=0700,size=4k")
	}
	return nil
}

// controlGroups shows the machine's hierarchies, and of cgroup2 only the host's own part.
func (b boot) controlGroups(root string) error {
	const path = "/sys/fs/cgroup"
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	if err := unix.Mount(path, root+path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", path, err)
	}
	for _, at := range b.Cgroups {
		// The kernel refuses one filesystem twice on one place.
		if err := unix.Unmount(root+at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount the machine's %s: %w", at, err)
		}
		if err := mount("cgroup2", "cgroup2", root+at, 0, ""); err != nil {
			return err
		}
	}
	return nil
}

// devices makes a /dev in which nothing of the machine can be harmed.
func devices(dev string) error {
	for _, dir := range []string{"pts", "shm", "net"} {
		if err := os.Mkdir(filepath.Join(dev, dir), 0o755); err != nil {
			return err
		}
	}
	if err := mount("devpts", "devpts", dev+"/pts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"); err != nil {
		return err
	}
	if err := mount("tmpfs", "tmpfs", dev+"/shm", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	for _, node := range []struct {
		name         string
		major, minor uint32
	}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}, {"net/tun", 10, 200}} {
		path := filepath.Join(dev, node.name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(node.major, node.minor))); err != nil {
			return fmt.Errorf("make device %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	return nil
}

// personal gives the host what tells two machines apart: name and machine id once, a boot id at every start.
func (b boot) personal(root string) error {
	if b.First {
		for _, path := range b.Without {
			if err := os.RemoveAll(root + path); err != nil {
				return fmt.Errorf("hide %s: %w", path, err)
			}
		}
		id := make([]byte, 16)
		rand.Read(id)
		for path, content := range map[string]string{"/etc/hostname": b.Hostname, "/etc/machine-id": hex.EncodeToString(id)} {
			if err := os.Remove(root + path); err != nil && !os.IsNotExist(err) {
				return err
			}
			if err := os.WriteFile(root+path, []byte(content+"\n"), 0o644); err != nil {
				return err
			}
		}
	}
	u := make([]byte, 16)
	rand.Read(u)
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	file := root + "/run/boot_id"
	id := fmt.Sprintf("%x-%x-%x-%x-%x\n", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	if err := os.WriteFile(file, []byte(id), 0o444); err != nil {
		return err
	}
	if err := unix.Mount(file, root+"/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind boot id: %w", err)
	}
	return nil
}

// enter makes root the root and lets go of the machine's own.
func enter(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot to %s: %w", root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the machine's root: %w", err)
	}
	return os.Chdir("/")
}

// reap waits for children until SIGTERM or the end of the owner. When it returns, the kernel ends the rest of the host.
func (b boot) reap() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGCHLD, unix.SIGTERM)
	gone := make(chan struct{})
	if b.Leashed {
		go func() {
			io.Copy(io.Discard, os.NewFile(leashFD, "leash"))
			close(gone)
		}()
	}
	for {
		select {
		case <-gone:
			return
		case s := <-signals:
			if s == unix.SIGTERM {
				return
			}
			for pid := 1; pid > 0; {
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
		}
	}
}

func mount(source, kind, path string, flags uintptr, data string) error {
	if err := unix.Mount(source, path, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", kind, path, err)
	}
	return nil
}
