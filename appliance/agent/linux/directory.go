package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/wire"
)

// directories makes folders. What the mesh did not make is never removed, and data never, nor anything with data beneath it.
type directories struct {
	data    *dataList
	modules string // the folder of the instances' folders: made with the first of them
}

func (directories) Observe(_ context.Context, r wire.Resource) (host.Observation, error) {
	s, err := read[wire.DirectorySpec](r)
	if err != nil {
		return host.Observation{}, err
	}
	p, err := walk(s.Path)
	if errors.Is(err, os.ErrNotExist) {
		return host.Observation{}, nil
	}
	if err != nil {
		return host.Observation{}, err
	}
	defer p.close()
	f, st, err := p.open(unix.S_IFDIR, "folder")
	if f == nil || err != nil {
		return host.Observation{}, err
	}
	f.Close()
	want, err := lookup(s.Owner, s.Group, s.Mode)
	if err != nil {
		return host.Observation{Present: true, Differs: err.Error()}, nil
	}
	differs := attributesOf(st).differs(want)
	return host.Observation{Present: true, Matches: differs == "", Differs: differs}, nil
}

func (directories) Before(_ context.Context, r wire.Resource) (json.RawMessage, error) {
	s, err := read[wire.DirectorySpec](r)
	if err != nil {
		return nil, err
	}
	p, err := walk(s.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer p.close()
	f, st, err := p.open(unix.S_IFDIR, "folder")
	if f == nil || err != nil {
		return nil, err
	}
	f.Close()
	return json.Marshal(attributesOf(st))
}

func (d directories) Do(_ context.Context, r wire.Resource) error {
	s, err := read[wire.DirectorySpec](r)
	if err != nil {
		return err
	}
	want, err := lookup(s.Owner, s.Group, s.Mode)
	if err != nil {
		return fmt.Errorf("make folder %s: %w", s.Path, err)
	}
	owner := ""
	if s.IsData() {
		owner = s.Owner
	}
	if err := d.data.set(s.Path, owner); err != nil { // first: data that is there is known as data
		return err
	}
	if filepath.Dir(s.Path) == d.modules {
		if err := os.MkdirAll(d.modules, 0o755); err != nil {
			return err
		}
	}
	return makeFolder(s.Path, want)
}

// makeFolder makes the folder where it is missing, and gives it its attributes.
func makeFolder(at string, want attributes) error {
	p, err := walk(at)
	if err != nil {
		return err
	}
	defer p.close()
	f, st, err := p.open(unix.S_IFDIR, "folder")
	if err != nil {
		return err
	}
	if f == nil {
		if err := unix.Mkdirat(p.fd(), p.name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return p.fail("make folder", err)
		}
		if f, st, err = p.open(unix.S_IFDIR, "folder"); err != nil {
			return err
		}
		if f == nil {
			return appliance.Errorf(appliance.Conflict, "make folder %s: somebody removed it meanwhile", at)
		}
	}
	defer f.Close()
	if attributesOf(st).differs(want) == "" {
		return nil
	}
	if err := want.set(int(f.Fd())); err != nil {
		return p.fail("set attributes of", err)
	}
	if err := f.Sync(); err != nil {
		return p.fail("sync", err)
	}
	return p.sync()
}

func (d directories) Undo(_ context.Context, r wire.Resource, undo json.RawMessage) (kept bool, err error) {
	return d.undo(r, undo, false)
}

// Purge is an Undo that takes data along. A data folder that was there before stays: what was in it then cannot be told from the rest.
func (d directories) Purge(_ context.Context, r wire.Resource, undo json.RawMessage) (kept bool, err error) {
	return d.undo(r, undo, true)
}

func (d directories) undo(r wire.Resource, undo json.RawMessage, purge bool) (kept bool, err error) {
	s, err := read[wire.DirectorySpec](r)
	if err != nil {
		return false, err
	}
	before, there, err := record[attributes](undo)
	if err != nil {
		return false, err
	}
	p, err := walk(s.Path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer p.close()
	f, _, err := p.open(unix.S_IFDIR, "folder")
	if f == nil || err != nil {
		return false, err
	}
	defer f.Close()
	if s.IsData() && (there || !purge) {
		return true, nil
	}
	if beneath, err := d.data.beneath(s.Path); beneath || err != nil {
		return true, err
	}
	if there {
		if err := before.set(int(f.Fd())); err != nil {
			return false, p.fail("set attributes of", err)
		}
		return false, nil
	}
	if err := p.removeAll(); err != nil || !purge {
		return false, err
	}
	return false, d.data.set(s.Path, "")
}

// removeAll removes what is at the place with everything beneath it, and follows no link out of it.
func (p place) removeAll() error {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", p.fd()))
	if err != nil {
		return p.fail("remove", err)
	}
	defer root.Close()
	if err := root.RemoveAll(p.name); err != nil {
		return p.fail("remove", err)
	}
	return p.sync()
}

// dataList knows every data folder ever made here and its owner, so that neither goes with something around it, and that a user who has
// to be made again gets the number that the data belongs to (MOD-10). It is the only writer of its file.
type dataList struct {
	path string
	mu   sync.Mutex
}

type dataFile struct {
	Version     int                `json:"version"`
	Directories map[string]string  `json:"directories"`     // path -> owner
	Users       map[string]account `json:"users,omitempty"` // the owners, as they were when their data was made
}

// account is a user with the group of the same name, by number.
type account struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

func (d *dataList) read() (dataFile, error) {
	l := dataFile{Version: 1, Directories: map[string]string{}, Users: map[string]account{}}
	data, err := os.ReadFile(d.path)
	if os.IsNotExist(err) {
		return l, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	if err == nil && l.Version != 1 {
		err = fmt.Errorf("version %d, this binary knows 1", l.Version)
	}
	if err != nil {
		return l, fmt.Errorf("read list of data folders %s: %w", d.path, err)
	}
	return l, nil
}

// set notes the owner of a data folder; an empty one says that the path is no data.
func (d *dataList) set(path, owner string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, err := d.read()
	if err != nil || l.Directories[path] == owner {
		return err
	}
	if l.Directories[path] = owner; owner == "" {
		delete(l.Directories, path)
	}
	if _, known := l.Users[owner]; owner != "" && owner != "root" && !known {
		var a account
		if a.UID, err = userID(owner); err == nil {
			a.GID, err = groupID(owner)
		}
		if err != nil {
			return err
		}
		l.Users[owner] = a
	}
	maps.DeleteFunc(l.Users, func(name string, _ account) bool {
		return !slices.Contains(slices.Collect(maps.Values(l.Directories)), name)
	})
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(d.path), 0o700); err != nil {
		return err
	}
	return durable.WriteFile(d.path, data, 0o600)
}

// beneath says whether data is still there beneath path.
func (d *dataList) beneath(path string) (bool, error) {
	return d.any(func(p, _ string) bool { return strings.HasPrefix(p, path+"/") })
}

// ownedBy says whether data of a user is still there.
func (d *dataList) ownedBy(name string) (bool, error) {
	return d.any(func(_, owner string) bool { return owner == name })
}

// account gives the numbers that a user had when its data was made; false where it has none.
func (d *dataList) account(name string) (account, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, err := d.read()
	a, ok := l.Users[name]
	return a, ok, err
}

func (d *dataList) any(is func(path, owner string) bool) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, err := d.read()
	if err != nil {
		return true, err
	}
	for path, owner := range l.Directories {
		if _, err := os.Lstat(path); is(path, owner) && !os.IsNotExist(err) {
			return true, nil
		}
	}
	return false, nil
}

// size is what a folder takes on the disk. Links are not followed.
func size(ctx context.Context, r wire.Resource) (bytes int64, err error) {
	s, err := read[wire.DirectorySpec](r)
	if err != nil {
		return 0, err
	}
	p, err := walk(s.Path)
	if err != nil {
		return 0, err
	}
	defer p.close()
	f, _, err := p.open(unix.S_IFDIR, "folder")
	if f == nil || err != nil {
		return 0, err
	}
	defer f.Close()
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return 0, p.fail("measure", err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(_ string, e fs.DirEntry, err error) error {
		if err == nil {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // it went meanwhile
			err = nil
		}
		return errors.Join(err, ctx.Err())
	})
	return bytes, err
}
