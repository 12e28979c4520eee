package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Host of a running bed.
type Host struct {
	Name    string
	Address netip.Addr // on its first link
	bed     *Running
	number  int
	plugs   []plug

	mu  sync.Mutex
	dir *os.File // the control group, held open for the commands that start in it
}

func (h *Host) first() process { return h.bed.record.Hosts[h.number] }

func (h *Host) group() string {
	if h.bed.record.Group == "" {
		return ""
	}
	return filepath.Join(h.bed.record.Group, h.Name)
}

func (h *Host) groupDir() *os.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dir == nil && h.group() != "" {
		h.dir, _ = os.Open(h.group()) // without it a command runs in our own group
	}
	return h.dir
}

func (h *Host) closeGroup() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dir != nil {
		h.dir.Close()
		h.dir = nil
	}
}

func (h *Host) folder() string { return filepath.Join(h.bed.Dir, "hosts", h.Name) }

// Upper is where everything lies that differs on the host's disk from the machine's, as the kernel's overlay has it.
func (h *Host) Upper() string { return filepath.Join(h.folder(), "upper") }

// start boots the host; fresh says that its disk is new.
func (h *Host) start(fresh bool, mounts []string) error {
	for _, dir := range []string{"root", "upper", "work"} {
		if err := os.MkdirAll(filepath.Join(h.folder(), dir), 0o755); err != nil {
			return err
		}
	}
	if group := h.group(); group != "" {
		if err := os.Mkdir(group, 0o755); err != nil && !os.IsExist(err) {
			return err
		}
	}
	p, err := h.bed.start(boot{Hostname: h.Name, Folder: h.folder(), Hide: filepath.Dir(h.bed.Dir),
		Without: h.bed.record.Bed.Hosts[h.number].Without, First: fresh}, h.group(), mounts)
	h.bed.record.Hosts[h.number] = p // recorded also on failure, to be ended by Down
	if err := errors.Join(err, h.bed.record.save(h.bed.Dir)); err != nil {
		return err
	}
	if err := raiseLoopback(p.Pid); err != nil {
		return err
	}
	for _, plug := range h.plugs {
		if err := connect(h.bed.record.Switch.Pid, p.Pid, plug); err != nil {
			return err
		}
	}
	return nil
}

// stop is a power cut, but for what the kernel still holds in memory: nobody on the host is asked.
func (h *Host) stop(ctx context.Context) error {
	h.closeGroup()
	first := h.first()
	mounts := ""
	if first.alive() {
		mounts = namespace(first.Pid, "mnt")
	}
	if err := first.kill(ctx); err != nil {
		return fmt.Errorf("stop host %s: %w", h.Name, err)
	}
	// The disk may be mounted again only when the last holder of the old mounts has gone.
	return until(ctx, func() string {
		if pids := inside("mnt", mounts); len(pids) > 0 {
			return fmt.Sprintf("stop host %s: processes %v still hold its mounts", h.Name, pids)
		}
		return ""
	})
}

// Reboot ends everything on the host and starts it with the same disk and an empty /run and /tmp.
func (h *Host) Reboot(ctx context.Context) error {
	if err := h.stop(ctx); err != nil {
		return err
	}
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	if err := removeGroups(ctx, h.group()); err != nil {
		return fmt.Errorf("reboot %s: %w", h.Name, err)
	}
	if err := h.start(false, mounts); err != nil {
		return fmt.Errorf("reboot %s: %w", h.Name, err)
	}
	return nil
}

// Unplug pulls all cables of the host; Plug puts them back.
func (h *Host) Unplug() error { return h.setPorts(false) }

// Plug undoes Unplug.
func (h *Host) Plug() error { return h.setPorts(true) }

func (h *Host) setPorts(up bool) error {
	for _, plug := range h.plugs {
		if err := setPort(h.bed.record.Switch.Pid, plug, up); err != nil {
			return err
		}
	}
	return nil
}

func environment() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=xterm", "LANG=C.UTF-8"}
}

// Command prepares a program on the host, run as root with a clean environment in a process group of its own, which
// the end of ctx kills. Daemons that the program leaves behind live on.
func (h *Host) Command(ctx context.Context, argv ...string) *exec.Cmd {
	args := []string{"--target", strconv.Itoa(h.first().Pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(args, argv...)...)
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if dir := h.groupDir(); dir != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second // a daemon that keeps our pipes does not keep us
	return cmd
}

// Run runs a program to its end. The code is that of the program, -1 where a signal ended it; err is only about
// running it at all.
func (h *Host) Run(ctx context.Context, argv ...string) (stdout, stderr string, code int, err error) {
	var out, errs bytes.Buffer
	cmd := h.Command(ctx, argv...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil || errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("run %q on %s: %w", argv, h.Name, err)
	}
	if cmd.ProcessState == nil {
		return "", "", -1, err
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode(), err
}

// Put writes a file on the host, with the folders above it.
func (h *Host) Put(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	cmd := h.Command(ctx, "install", "-D", "-m", fmt.Sprintf("%04o", mode.Perm()), "/dev/stdin", path)
	cmd.Stdin = bytes.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("put %s on %s: %w: %s", path, h.Name, err, bytes.TrimSpace(out))
	}
	return nil
}

// Get reads a file of the host.
func (h *Host) Get(ctx context.Context, path string) ([]byte, error) {
	out, errs, code, err := h.Run(ctx, "cat", "--", path)
	if err == nil && code != 0 {
		err = fmt.Errorf("get %s from %s: %s", path, h.Name, strings.TrimSpace(errs))
	}
	return []byte(out), err
}

// Pids lists the host's processes, by the numbers they have there, whose command line matches.
func (h *Host) Pids(match func(cmdline []string) bool) []int {
	var pids []int
	for _, outer := range inside("pid", namespace(h.first().Pid, "pid")) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", outer))
		if err != nil || len(text) == 0 { // gone, or a zombie
			continue
		}
		if pid := innerPid(outer); pid > 1 && match(strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// Kill signals a process by the number it has on the host.
func (h *Host) Kill(pid int, signal syscall.Signal) error {
	for _, outer := range inside("pid", namespace(h.first().Pid, "pid")) {
		if innerPid(outer) == pid {
			if err := unix.Kill(outer, signal); err != nil {
				return fmt.Errorf("signal process %d on %s: %w", pid, h.Name, err)
			}
			return nil
		}
	}
	return fmt.Errorf("signal process %d on %s: no such process", pid, h.Name)
}

// innerPid is the number of a process in its innermost namespace, 0 when it has gone.
func innerPid(outer int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", outer))
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "NSpid:" {
			pid, _ := strconv.Atoi(fields[len(fields)-1])
			return pid
		}
	}
	return 0
}
