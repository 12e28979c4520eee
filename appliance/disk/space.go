// Package disk says how much of a filesystem is free and what follows from that, and holds some of it in reserve. Who is told, and what
// is written, belong elsewhere.
package disk

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Space is what a filesystem has. Free is what others than root may take.
type Space struct{ Free, Total Size }

// Look gives the space of the filesystem that path is on.
func Look(path string) (Space, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return Space{}, fmt.Errorf("look at the disk of %s: %w", path, err)
	}
	return Space{Free: Size(fs.Bavail) * Size(fs.Bsize), Total: Size(fs.Blocks) * Size(fs.Bsize)}, nil
}

// Percent is how much of the whole is free.
func (s Space) Percent() float64 { return 100 * float64(s.Free) / float64(max(s.Total, 1)) }

func (s Space) String() string {
	return fmt.Sprintf("%s of %s are free (%.0f %%)", s.Free, s.Total, s.Percent())
}

// Level is what is still to be done with so much space.
type Level int

const (
	Roomy Level = iota
	Low         // a node warns
	Full        // and applies only removals and revocations
)

// defaultLeast is the least free space where nobody chose one, unless the twentieth part is more.
const defaultLeast = 1 << 30

// Bounds are what must be free of s for no warning, and for anything new (DEC-14): the tenth and the twentieth part, but no less than 1 GiB;
// where somebody chose the least, twice that and that. Zero chooses none.
func (s Space) Bounds(least *Size) (warn, stop Size) {
	if least != nil {
		return 2 * *least, *least
	}
	return s.Total / 10, max(s.Total/20, defaultLeast)
}

// Level judges s by its bounds.
func (s Space) Level(least *Size) Level {
	switch warn, stop := s.Bounds(least); {
	case s.Free < stop:
		return Full
	case s.Free < warn:
		return Low
	}
	return Roomy
}
