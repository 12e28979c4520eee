package netns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A Running bed. Its methods and Reboot of its hosts are for one goroutine at a time; the rest of a Host is for any.
type Running struct {
	Dir    string // the bed's own folder
	record record
	hosts  []*Host
	leash  [2]*os.File // read and write end; the write end is the owner's life
	reaped sync.WaitGroup
}

// Up raises a bed under dir that goes with this process, even when it is killed. What an earlier owner left is swept.
func Up(ctx context.Context, bed Bed, dir string) (*Running, error) {
	self, err := identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	return up(ctx, bed, dir, self)
}

// UpKept raises a bed that stands until it is taken down, by whatever process.
func UpKept(ctx context.Context, bed Bed, dir string) (*Running, error) {
	return up(ctx, bed, dir, process{})
}

func up(ctx context.Context, bed Bed, dir string, owner process) (*Running, error) {
	if _, err := Sweep(ctx, dir); err != nil {
		return nil, fmt.Errorf("sweep %s: %w", dir, err)
	}
	folder, rec, err := claim(dir, bed, owner)
	if err != nil {
		return nil, fmt.Errorf("raise bed %s: %w", bed.Name, err)
	}
	r := running(folder, rec)
	if err := r.raise(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("raise bed %s: %w", bed.Name, err), r.Down(ctx))
	}
	return r, nil
}

func running(folder string, rec record) *Running {
	r := &Running{Dir: folder, record: rec}
	for i, spec := range rec.Bed.Hosts {
		host := &Host{Name: spec.Name, bed: r, number: i}
		for n, name := range spec.Links {
			link := r.link(name)
			host.plugs = append(host.plugs, plug{host: i, link: link, name: fmt.Sprintf("eth%d", n), addr: rec.Bed.Links[link].address(i)})
		}
		host.Address = host.plugs[0].addr.Addr()
		r.hosts = append(r.hosts, host)
	}
	return r
}

func (r *Running) link(name string) int {
	for i, link := range r.record.Bed.Links {
		if link.Name == name {
			return i
		}
	}
	return -1
}

// Name is unique among the beds of a folder.
func (r *Running) Name() string { return filepath.Base(r.Dir) }

// Bed is what was raised, with the subnets chosen.
func (r *Running) Bed() Bed { return r.record.Bed }

// Hosts are all hosts in the bed's order.
func (r *Running) Hosts() []*Host { return r.hosts }

// Host is the host of that name, nil where there is none.
func (r *Running) Host(name string) *Host {
	for _, host := range r.hosts {
		if host.Name == name {
			return host
		}
	}
	return nil
}

func (r *Running) raise(ctx context.Context) error {
	if r.record.Owner != (process{}) {
		read, write, err := os.Pipe()
		if err != nil {
			return err
		}
		r.leash = [2]*os.File{read, write}
	}
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		r.record.Group = filepath.Join(mounts[0], "mesh-lab."+r.Name()+"."+strconv.Itoa(os.Getpid()))
		if err := errors.Join(os.Mkdir(r.record.Group, 0o755), r.record.save(r.Dir)); err != nil {
			return err
		}
	}
	if r.record.Switch, err = r.start(boot{Hostname: "switch"}, r.record.Group, mounts); err != nil {
		return fmt.Errorf("start the switch: %w", err)
	}
	if err := errors.Join(r.record.save(r.Dir), raiseSwitch(r.record.Switch.Pid, len(r.record.Bed.Links))); err != nil {
		return err
	}
	for _, host := range r.hosts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := host.start(true, mounts); err != nil {
			return fmt.Errorf("start host %s: %w", host.Name, err)
		}
	}
	return nil
}

// start runs this program as the first process of new namespaces and returns when it says it is ready.
func (r *Running) start(b boot, group string, mounts []string) (process, error) {
	exe, err := os.Executable()
	if err != nil {
		return process{}, err
	}
	b.Leashed = r.leash[0] != nil
	b.Cgroups = mounts
	config, err := json.Marshal(b)
	if err != nil {
		return process{}, err
	}
	console, err := os.OpenFile(filepath.Join(r.Dir, b.Hostname+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return process{}, err
	}
	defer console.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return process{}, err
	}
	defer read.Close()
	cmd := exec.Command("unshare", "--cgroup", "--", exe, InitCommand, string(config))
	cmd.Env = environment()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = console, console
	cmd.ExtraFiles = []*os.File{write}
	if b.Leashed {
		cmd.ExtraFiles = append(cmd.ExtraFiles, r.leash[0])
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC}
	if group != "" {
		dir, err := os.Open(group)
		if err != nil {
			return process{}, err
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	err = cmd.Start()
	write.Close()
	if err != nil {
		return process{}, err
	}
	p, err := identify(cmd.Process.Pid)
	r.reaped.Go(func() { cmd.Wait() })
	if err != nil {
		return process{}, err
	}
	if err := read.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return p, err
	}
	answer, err := io.ReadAll(read)
	if err == nil && string(answer) != "ready" {
		err = fmt.Errorf("first process: %q", answer)
	}
	return p, err
}

// Down ends every process of the bed and removes its namespaces, control groups and folder. A second time it does nothing.
func (r *Running) Down(ctx context.Context) error {
	var failed []error
	for _, host := range r.hosts {
		failed = append(failed, host.stop(ctx))
	}
	failed = append(failed, r.record.Switch.kill(ctx))
	for _, end := range r.leash {
		if end != nil {
			end.Close()
		}
	}
	r.leash = [2]*os.File{}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("take down bed %s: %w", r.Name(), err)
	}
	r.reaped.Wait()
	if err := removeGroups(ctx, r.record.Group); err != nil {
		return fmt.Errorf("take down bed %s: %w", r.Name(), err)
	}
	// The record goes last: killed half-way, the bed is still found.
	entries, err := os.ReadDir(r.Dir)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, entry := range entries {
		if entry.Name() != recordName {
			failed = append(failed, os.RemoveAll(filepath.Join(r.Dir, entry.Name())))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("take down bed %s: %w", r.Name(), err)
	}
	return os.RemoveAll(r.Dir)
}
