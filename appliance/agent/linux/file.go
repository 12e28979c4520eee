package linux

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// maxKept bounds a file that was there before, in bytes: it is kept in the undo record.
const maxKept = 1 << 20

// files makes files. A file is always replaced whole by a new one: what is there may have other names, which a module's user chose.
type files struct{}

// fileBefore is what was at the path at first touch.
type fileBefore struct {
	attributes
	Content []byte `json:"content"`
}

func (files) Observe(_ context.Context, r wire.Resource) (host.Observation, error) {
	s, err := read[wire.FileSpec](r)
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
	f, st, err := p.open(unix.S_IFREG, "file")
	if f == nil || err != nil {
		return host.Observation{}, err
	}
	defer f.Close()
	want, err := lookup(s.Owner, s.Group, s.Mode)
	if err != nil {
		return host.Observation{Present: true, Differs: err.Error()}, nil
	}
	differs := attributesOf(st).differs(want)
	if differs == "" && !holds(f, st.Size, s.Content) {
		differs = "content"
	}
	return host.Observation{Present: true, Matches: differs == "", Differs: differs}, nil
}

// holds compares without reading more than there should be.
func holds(f *os.File, size int64, content string) bool {
	if size != int64(len(content)) {
		return false
	}
	have, err := io.ReadAll(io.LimitReader(f, size+1))
	return err == nil && string(have) == content
}

func (files) Before(_ context.Context, r wire.Resource) (json.RawMessage, error) {
	s, err := read[wire.FileSpec](r)
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
	f, st, err := p.open(unix.S_IFREG, "file")
	if f == nil || err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxKept+1))
	if err != nil {
		return nil, p.fail("read", err)
	}
	if len(content) > maxKept {
		return nil, appliance.Errorf(appliance.Conflict, "keep %s as it was: more than %d bytes", s.Path, maxKept).WithHint("move the file away")
	}
	return json.Marshal(fileBefore{attributesOf(st), content})
}

func (f files) Do(ctx context.Context, r wire.Resource) error {
	o, err := f.Observe(ctx, r)
	if err != nil || o.Matches {
		return err
	}
	s, err := read[wire.FileSpec](r)
	if err != nil {
		return err
	}
	want, err := lookup(s.Owner, s.Group, s.Mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", s.Path, err)
	}
	return writeFile(s.Path, []byte(s.Content), want)
}

func (files) Undo(_ context.Context, r wire.Resource, undo json.RawMessage) (bool, error) {
	s, err := read[wire.FileSpec](r)
	if err != nil {
		return false, err
	}
	before, there, err := record[fileBefore](undo)
	if err != nil {
		return false, err
	}
	p, err := walk(s.Path)
	if errors.Is(err, os.ErrNotExist) && !there {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer p.close()
	f, st, err := p.open(unix.S_IFREG, "file")
	if err != nil {
		return false, err
	}
	if f != nil {
		defer f.Close()
	}
	switch {
	case there && f != nil && attributesOf(st) == before.attributes && holds(f, st.Size, string(before.Content)):
		return false, nil
	case there:
		return false, p.write(before.Content, before.attributes)
	case f == nil:
		return false, nil
	}
	return false, p.remove()
}

// remove removes the file at the place.
func (p place) remove() error {
	if err := unix.Unlinkat(p.fd(), p.name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return p.fail("remove", err)
	}
	return p.sync()
}

// writeFile puts a file at a path; without content it removes the one there.
func writeFile(at string, content []byte, a attributes) error {
	p, err := walk(at)
	if err != nil {
		return err
	}
	defer p.close()
	if content == nil {
		return p.remove()
	}
	return p.write(content, a)
}

// write puts a whole new file at the place, durably; what is there must be a file or nothing.
func (p place) write(content []byte, a attributes) error {
	if f, _, err := p.open(unix.S_IFREG, "file"); err != nil {
		return err
	} else if f != nil {
		f.Close()
	}
	tmp := "." + p.name + ".mesh"
	if err := unix.Unlinkat(p.fd(), tmp, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return p.fail("write", err)
	}
	fd, err := unix.Openat(p.fd(), tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return p.fail("write", err)
	}
	f := os.NewFile(uintptr(fd), p.path)
	_, err = io.Copy(f, bytes.NewReader(content))
	if err == nil {
		err = a.set(fd)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = unix.Renameat(p.fd(), tmp, p.fd(), p.name)
	}
	if err != nil {
		unix.Unlinkat(p.fd(), tmp, 0)
		return p.fail("write", err)
	}
	return p.sync()
}
