package registry

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/opencontainers/go-digest"
)

// content is a blob being read. Read as a whole it is checked on the way: its last bytes are given only if it has its digest, so that
// what is damaged is never taken for what was asked.
type content struct {
	r    *Registry
	d    digest.Digest
	file *os.File
	left int64
	hash hash.Hash // nil for a part
}

// openContent opens a blob of the given size, from one offset up to another; -1 is the end.
func (r *Registry) openContent(d digest.Digest, size, from, to int64) (*content, error) {
	f, err := os.Open(r.layout.content(d))
	if errors.Is(err, fs.ErrNotExist) {
		r.damage(d, nil)
		return nil, refuse(404, "BLOB_UNKNOWN", "%s is not there any more", d)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != size {
		r.damage(d, f)
		err = errDamaged
	}
	if err == nil {
		_, err = f.Seek(from, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	if to < 0 || to > size {
		to = size
	}
	c := &content{r: r, d: d, file: f, left: to - from}
	if c.left == size {
		c.hash = sha256.New()
	}
	return c, nil
}

func (c *content) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n, err := c.file.Read(p[:min(int64(len(p)), c.left)])
	if err != nil {
		if err == io.EOF || errors.Is(err, syscall.EIO) {
			c.r.damage(c.d, c.file)
			err = errDamaged
		}
		return 0, err
	}
	c.left -= int64(n)
	if c.hash != nil {
		c.hash.Write(p[:n])
		if c.left == 0 && digest.NewDigest(digest.SHA256, c.hash) != c.d {
			c.r.damage(c.d, c.file)
			return 0, errDamaged
		}
	}
	return n, nil
}

func (c *content) Close() error { return c.file.Close() }

// damage puts content aside that was read from f and is not what its digest names, or notes that there is none. Where better content
// has come meanwhile, that stays.
func (r *Registry) damage(d digest.Digest, f *os.File) {
	r.sweeping.Lock()
	defer r.sweeping.Unlock()
	there, err := os.Lstat(r.layout.content(d))
	if err == nil {
		if f == nil {
			return
		}
		read, err := f.Stat()
		if err != nil || !os.SameFile(read, there) {
			return
		}
		if err := os.Rename(r.layout.content(d), r.layout.aside(d)); err != nil {
			r.log.Error("put damaged content aside", "digest", d, "err", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.blobs[d]; b != nil && !b.damaged { // else it was collected, or is known
		b.damaged = true
		r.log.Error("content is damaged", "digest", d, "repositories", r.holders(d))
	}
}
