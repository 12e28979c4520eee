package artifacts

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/novox/mesh/appliance"
)

// put makes a tree; a name that ends in / is a folder, "-> x" a link, "*" before the content a program.
func put(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		target, link := strings.CutPrefix(content, "-> ")
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o700)
		case link:
			err = os.Symlink(target, path)
		case strings.HasPrefix(content, "*"):
			err = os.WriteFile(path, []byte(content), 0o750)
		default:
			err = os.WriteFile(path, []byte(content), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// look gives a tree as put would make it, with modes.
func look(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch info.Mode().Type() {
		case fs.ModeDir:
			out[name+"/"] = info.Mode().String()
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			out[name] = "-> " + target
			return err
		default:
			data, err := os.ReadFile(path)
			out[name] = info.Mode().String() + " " + string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func layerOf(t testing.TB, s *Source) []byte {
	t.Helper()
	data, bound := layerAndBound(t, s)
	_ = bound
	return data
}

func layerAndBound(t testing.TB, s *Source) ([]byte, extent) {
	t.Helper()
	m := manifestOf(t, s)
	var bound extent
	fmt.Sscan(m.Layers[0].Annotations[sizeNote], &bound.bytes)
	fmt.Sscan(m.Layers[0].Annotations[entriesNote], &bound.entries)
	f, err := s.fetch(t.Context(), m.Layers[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return data, bound
}

// BLD-6: the same files make the same bytes, whenever, by whomever and with whatever permissions they were written; what comes out of them
// is the tree.
func TestPackAndUnpack(t *testing.T) {
	files := map[string]string{"bin/tool": "*program", "conf/a.ini": "a", "conf/deep/b.ini": strings.Repeat("b", 100_000), "empty/": "", "none": "",
		"link": "-> bin/tool", "conf/up": "-> ../bin/tool", "conf/folder": "-> deep", "näme with spaces": "x", strings.Repeat("long/", 50) + "end": "y"}
	one, two := t.TempDir(), t.TempDir()
	put(t, one, files)
	put(t, two, files)
	if err := os.Chtimes(filepath.Join(two, "none"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(two, "none"), 1234, 1234); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(two, "bin/tool"), 0o711); err != nil {
		t.Fatal(err)
	}
	a, err := PackFiles(one, []string{"."})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := PackFiles(two, []string{"conf", "bin/tool", "./empty/", "none", "link", "näme with spaces", "long", "bin"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if a.Digest() != b.Digest() {
		t.Errorf("%s and %s", a.Digest(), b.Digest())
	}
	layer, bound := layerAndBound(t, a)
	dir := filepath.Join(t.TempDir(), "tree")
	old := syscall.Umask(0o077)
	err = unpack(bytes.NewReader(layer), bound, dir)
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"bin/": "drwxr-xr-x", "bin/tool": "-rwxr-xr-x *program", "conf/": "drwxr-xr-x", "conf/a.ini": "-rw-r--r-- a", "conf/deep/": "drwxr-xr-x",
		"conf/deep/b.ini": "-rw-r--r-- " + strings.Repeat("b", 100_000), "empty/": "drwxr-xr-x", "none": "-rw-r--r-- ", "link": "-> bin/tool",
		"conf/up": "-> ../bin/tool", "conf/folder": "-> deep", "näme with spaces": "-rw-r--r-- x"}
	for i := range 50 {
		want[strings.Repeat("long/", i+1)] = "drwxr-xr-x"
	}
	want[strings.Repeat("long/", 50)+"end"] = "-rw-r--r-- y"
	if d := cmp.Diff(want, look(t, dir)); d != "" {
		t.Error(d)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the tree itself: %v, %v", info.Mode(), err)
	}
	if err := unpack(bytes.NewReader(layer), bound, dir); err == nil {
		t.Error("unpacked over a tree that is there")
	}
}

// SAFE-3: nothing is packed that lies, or leads, outside the folder, nor what is no file; every refusal says what and why.
func TestPackRefuses(t *testing.T) {
	dir := t.TempDir()
	outside := t.TempDir()
	put(t, outside, map[string]string{"secret": "s"})
	put(t, dir, map[string]string{"good/file": "x", "out/abs": "-> /etc/passwd", "up/up": "-> ../../secret", "twist/e/a": "-> ../../good", "twist/e/b": "-> a/../../x",
		"dir": "-> " + outside, "many/a": "1", "many/b": "2", "many/c": "3", "many/d": "4", "big/a": strings.Repeat("x", 600), "big/b": strings.Repeat("x", 600), "nothing/": ""})
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		paths []string
		says  string
	}{
		{[]string{"out"}, `"out/abs": a symbolic link to "/etc/passwd", which is absolute`},
		{[]string{"up"}, `"up/up": a symbolic link to "../../secret", which leads out of the tree, or may`},
		{[]string{"twist"}, `"twist/e/b": a symbolic link to "a/../../x", which leads out of the tree, or may`},
		{[]string{"pipe"}, `"pipe": neither a file, a folder nor a symbolic link`},
		{[]string{"dir"}, "which is absolute"},
		{[]string{"dir/secret"}, `"dir" is no folder of the tree`},
		{[]string{"../x"}, "not a plain name inside the tree"},
		{[]string{"/etc"}, "not a plain name inside the tree"},
		{[]string{""}, "more than 4 files, folders and links"}, // all of it
		{[]string{"none"}, "no such file"},
		{nil, "there is nothing in it"},
		{[]string{"many"}, "more than 4 files, folders and links"},
		{[]string{"big"}, "more than 1000 bytes"},
	} {
		s, err := pack(dir, c.paths, extent{4, 1000})
		if err == nil {
			s.Close()
		}
		if appliance.KindOf(err) != appliance.Invalid || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%q: %v, want %q", c.paths, err, c.says)
		}
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "mesh-artifact-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// tarred makes a layer of headers as they are; a regular file's content is as long as it says.
func tarred(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, h := range entries {
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.CopyN(w, zeros{}, h.Size); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 3} }
func folder(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}
}
func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
}

// attacks are archives that must be refused, with what is said about them.
func attacks(t testing.TB) map[string]struct {
	layer []byte
	says  string
} {
	bomb := tarred(t, tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: 64 << 20})
	var many []tar.Header
	for i := range 101 {
		many = append(many, file(fmt.Sprintf("f%03d", i)))
	}
	var meta bytes.Buffer // headers that announce no entry: the reader passes over them by itself
	z, _ := zstd.NewWriter(&meta)
	one := archiveOf(t, tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("x", 300), Size: 0, PAXRecords: map[string]string{"a.b": strings.Repeat("y", 500_000)}})
	for range 20 {
		z.Write(one[:len(one)-3*512]) // without the entry's own header and the end
	}
	z.Close()
	whole := tarred(t, file("a"), file("b"))
	return map[string]struct {
		layer []byte
		says  string
	}{
		"climbs":                    {tarred(t, file("../a")), `"../a": not a plain name inside the tree`},
		"climbs from within":        {tarred(t, folder("d"), file("d/../../a")), "not a plain name inside the tree"},
		"absolute":                  {tarred(t, file("/etc/a")), "not a plain name inside the tree"},
		"dot":                       {tarred(t, file("./a")), "not a plain name inside the tree"},
		"empty part":                {tarred(t, folder("d"), file("d//a")), "not a plain name inside the tree"},
		"the tree itself":           {tarred(t, folder(".")), "not a plain name inside the tree"},
		"not UTF-8":                 {tarred(t, tar.Header{Typeflag: tar.TypeReg, Name: "a\xff", Size: 3, Format: tar.FormatGNU}), "not a plain name inside the tree"},
		"a long name":               {tarred(t, file(strings.Repeat("a", 1100))), "a name of 1100 bytes, at most 1024"},
		"absolute link":             {tarred(t, link("a", "/etc/passwd")), "which is absolute"},
		"link out":                  {tarred(t, link("a", "../x")), "which leads out of the tree, or may"},
		"link out by way of links":  {tarred(t, folder("d"), folder("d/e"), link("d/e/a", "../../f"), link("d/e/b", "a/../../x")), "which leads out of the tree, or may"},
		"empty link":                {tarred(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: ""}), "which is no path"},
		"through a link":            {tarred(t, folder("d"), link("l", "d"), file("l/a")), `"l/a": its folder is not an earlier folder`},
		"through a link turned out": {tarred(t, link("l", "."), file("l/a")), `its folder is not an earlier folder`},
		"a folder over a link":      {tarred(t, folder("d"), link("l", "d"), folder("l")), `"l": it is twice`},
		"folder not announced":      {tarred(t, file("d/a")), `"d/a": its folder is not an earlier folder`},
		"within a file":             {tarred(t, file("d"), file("d/a")), `its folder is not an earlier folder`},
		"hard link":                 {tarred(t, file("a"), tar.Header{Typeflag: tar.TypeLink, Name: "b", Linkname: "a"}), `an entry of type '1'`},
		"hard link out":             {tarred(t, tar.Header{Typeflag: tar.TypeLink, Name: "b", Linkname: "/etc/shadow"}), `an entry of type '1'`},
		"character device":          {tarred(t, tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}), `an entry of type '3'`},
		"block device":              {tarred(t, tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}), `an entry of type '4'`},
		"pipe":                      {tarred(t, tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}), `an entry of type '6'`},
		"global header":             {tarred(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"a.b": "c"}}), `an entry of type 'g'`},
		"set uid":                   {tarred(t, tar.Header{Typeflag: tar.TypeReg, Name: "su", Size: 3, Mode: 0o4755}), "sets more than permissions"},
		"twice":                     {tarred(t, file("a"), file("a")), `"a": it is twice in the archive`},
		"folder twice":              {tarred(t, folder("d"), file("d/a"), folder("d")), `"d": it is twice in the archive`},
		"a file over a folder":      {tarred(t, folder("d"), file("d")), `"d": it is twice in the archive`},
		"too many":                  {tarred(t, many...), `"f100": more than 100 files, folders and links`},
		"bomb":                      {bomb, `"zeros": more than 1000 bytes`},
		"bomb of headers":           {meta.Bytes(), "the archive grows beyond"},
		"cut":                       {whole[:len(whole)/2], "the archive is damaged"},
		"not zstd":                  {[]byte("hello, this is no archive at all"), "the archive is damaged"},
		"not tar":                   {compressed(t, bytes.Repeat([]byte("x"), 2000)), "the archive is damaged"},
		"window":                    {[]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xff, 0, 0, 0, 0}, "the archive is damaged"},
	}
}

func archiveOf(t testing.TB, h tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func compressed(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err == nil {
		_, err = z.Write(data)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// SAFE-2, SAFE-3: archives that would leave the tree, make what is no file, or grow without end are refused with what and why; nothing of
// them is left, and nothing beside them is touched.
func TestArchiveAttacks(t *testing.T) {
	for name, c := range attacks(t) {
		t.Run(name, func(t *testing.T) {
			beside := t.TempDir()
			put(t, beside, map[string]string{"x": "untouched"})
			before := look(t, beside)
			err := unpack(bytes.NewReader(c.layer), extent{100, 1000}, filepath.Join(beside, "tree"))
			if appliance.KindOf(err) != appliance.Invalid || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if d := cmp.Diff(before, look(t, beside)); d != "" {
				t.Error(d)
			}
		})
	}
}

// What was left by a kill in the middle gives way.
func TestUnpackAfterAKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	put(t, dir+".tmp", map[string]string{"half": "x", "a/b": "y"})
	if err := unpack(bytes.NewReader(tarred(t, file("whole"))), extent{10, 1000}, dir); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"whole": "-rw-r--r-- \x00\x00\x00"}, look(t, dir)); d != "" {
		t.Error(d)
	}
	if _, err := os.Lstat(dir + ".tmp"); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// SAFE-2: whatever the bytes, unpacking ends, within its bounds, and inside its folder.
func FuzzUnpack(f *testing.F) {
	for _, c := range attacks(f) {
		if len(c.layer) < 10_000 {
			f.Add(c.layer)
		}
	}
	f.Add(tarred(f, folder("d"), file("d/a"), link("d/l", "../d/a")))
	parent := f.TempDir()
	f.Fuzz(func(t *testing.T, layer []byte) {
		dir, err := os.MkdirTemp(parent, "case-*")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if unpackInto(bytes.NewReader(layer), extent{20, 10_000}, dir) != nil {
			return
		}
		var size int64
		err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			switch info.Mode().Type() {
			case 0:
				size += info.Size()
			case fs.ModeSymlink:
				real, err := filepath.EvalSymlinks(path)
				if err == nil && real != dir && !strings.HasPrefix(real, dir+"/") {
					t.Errorf("%s leads to %s", path, real)
				}
			case fs.ModeDir:
			default:
				t.Errorf("%s is %s", path, info.Mode())
			}
			return nil
		})
		if err != nil || size > 10_000 {
			t.Errorf("%d bytes, %v", size, err)
		}
		if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
			t.Errorf("beside the folder: %v, %v", entries, err)
		}
	})
}
