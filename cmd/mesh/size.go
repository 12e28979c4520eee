package main

import (
	"github.com/spf13/pflag"

	"github.com/novox/mesh/appliance/disk"
)

const leastFreeUsage = "below so much free disk space nothing new is made on this machine (default: 1G or 5 %; 0: never mind)"

// optionalSize is a flag whose absence means something.
type optionalSize struct{ to **disk.Size }

// sizeVar adds a flag for a size that stays nil where it is not given.
func sizeVar(f *pflag.FlagSet, to **disk.Size, name, usage string) {
	f.Var(optionalSize{to}, name, usage)
}

func (o optionalSize) Set(text string) error {
	s := new(disk.Size)
	if err := s.Set(text); err != nil {
		return err
	}
	*o.to = s
	return nil
}

func (o optionalSize) String() string { return "" }
func (optionalSize) Type() string     { return "SIZE" }
