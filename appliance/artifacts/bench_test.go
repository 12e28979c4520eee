package artifacts

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The reference is writing the same files again, plainly, and syncing them.
func BenchmarkUnpack(b *testing.B) {
	for _, c := range []struct {
		name        string
		files, size int
	}{{"large", 4, 25 << 20}, {"small", 10_000, 4 << 10}} {
		from := b.TempDir()
		content := incompressible(c.size)
		for i := range c.files {
			put(b, from, map[string]string{fmt.Sprintf("d%02d/f%05d", i/250, i): string(content)})
		}
		s, err := PackFiles(from, []string{"."})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		layer, bound := layerAndBound(b, s)
		b.Run(c.name+"/unpack", func(b *testing.B) {
			for b.Loop() {
				dir := filepath.Join(b.TempDir(), "tree")
				if err := unpack(bytes.NewReader(layer), bound, dir); err != nil {
					b.Fatal(err)
				}
				os.RemoveAll(dir)
			}
			b.SetBytes(bound.bytes)
		})
		b.Run(c.name+"/copy", func(b *testing.B) {
			for b.Loop() {
				dir := filepath.Join(b.TempDir(), "tree")
				if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
					b.Fatal(err)
				}
				if err := syncTree(dir); err != nil {
					b.Fatal(err)
				}
				os.RemoveAll(dir)
			}
			b.SetBytes(bound.bytes)
		})
		b.Run(c.name+"/pack", func(b *testing.B) {
			for b.Loop() {
				s, err := PackFiles(from, []string{"."})
				if err != nil {
					b.Fatal(err)
				}
				s.Close()
			}
			b.SetBytes(bound.bytes)
		})
	}
}
