package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/disk/disktest"
)

const (
	mib = disk.Size(1 << 20)
	gib = disk.Size(1 << 30)
)

// DEC-14: below 10 % a node warns; below 5 % or 1 GiB nothing new is applied; whoever chose the least has chosen both.
func TestLevel(t *testing.T) {
	least := func(s disk.Size) *disk.Size { return &s }
	for name, c := range map[string]struct {
		free, total disk.Size
		least       *disk.Size
		want        disk.Level
	}{
		"plenty":                     {11 * gib, 100 * gib, nil, disk.Roomy},
		"a tenth":                    {10 * gib, 100 * gib, nil, disk.Roomy},
		"below a tenth":              {10*gib - 1, 100 * gib, nil, disk.Low},
		"a twentieth":                {5 * gib, 100 * gib, nil, disk.Low},
		"below a twentieth":          {5*gib - 1, 100 * gib, nil, disk.Full},
		"a small disk":               {gib, 4 * gib, nil, disk.Roomy},
		"a small disk below 1 GiB":   {gib - 1, 4 * gib, nil, disk.Full},
		"1 GiB is less than a tenth": {gib, 12 * gib, nil, disk.Low},
		"empty":                      {0, 0, nil, disk.Full},
		"chosen":                     {32 * mib, 100 * gib, least(16 * mib), disk.Roomy},
		"chosen, below twice that":   {32*mib - 1, 40 * mib, least(16 * mib), disk.Low},
		"chosen, below":              {16*mib - 1, 40 * mib, least(16 * mib), disk.Full},
		"none chosen":                {0, 40 * mib, least(0), disk.Roomy},
	} {
		if got := (disk.Space{Free: c.free, Total: c.total}).Level(c.least); got != c.want {
			t.Errorf("%s: level %d, want %d", name, got, c.want)
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]disk.Size{"0": 0, "512": 512, "64M": 64 * mib, "64m": 64 * mib, "1.5 GiB": 3 * gib / 2, "2GB": 2 * gib, "1T": 1024 * gib, "4K": 4096} {
		var got disk.Size
		if err := got.Set(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "M", "-1", "1e9", "64 X", "1..5", "9999999999T", "0x10", "NaN"} {
		var got disk.Size
		if err := got.Set(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
	for size, want := range map[disk.Size]string{0: "0 B", 1023: "1023 B", 64 * mib: "64 MiB", gib + gib/2: "1.5 GiB", 5000 * gib: "4.883 TiB"} {
		if size.String() != want {
			t.Errorf("%d: %s, want %s", size, size, want)
		}
	}
}

// GEN-9: a ballast takes up its space, gives it back, and is never held in part.
func TestBallast(t *testing.T) {
	dir := disktest.Small(t, 4*mib)
	free := func() disk.Size {
		t.Helper()
		s, err := disk.Look(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s.Free
	}
	before := free()
	b := disk.Ballast{Path: filepath.Join(dir, "ballast"), Size: mib}
	if err := os.WriteFile(b.Path, []byte("half made"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.Hold(); err != nil || !b.Held() || free() > before-mib {
			t.Fatalf("held %v, %s free of %s: %v", b.Held(), free(), before, err)
		}
	}
	for range 2 {
		if err := b.LetGo(); err != nil || b.Held() || free() != before {
			t.Fatalf("held %v, %s free of %s: %v", b.Held(), free(), before, err)
		}
	}
	b.Size = 8 * mib
	if err := b.Hold(); !errors.Is(err, syscall.ENOSPC) || free() != before {
		t.Errorf("more than there is: %v, %s free of %s", err, free(), before)
	}
	b.Size = 0
	if err := b.Hold(); err != nil || b.Held() {
		t.Errorf("none: %v", err)
	}
}
