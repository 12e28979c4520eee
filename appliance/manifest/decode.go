package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of a file.
const (
	MaxSize  = 256 << 10
	maxDepth = 32
)

// decode reads one JSON value as jsonschema wants it, nil where there is none to go on with. What encoding/json would let pass is refused: a name twice in one object,
// bytes after the value, text that is not UTF-8 or holds a NUL, nesting without end.
func decode(data []byte, errs *Errors) any {
	if len(data) > MaxSize {
		errs.add("", fmt.Sprintf("at most %d KiB", MaxSize>>10), fmt.Sprintf("is %d bytes long", len(data)))
		return nil
	}
	if !utf8.Valid(data) {
		errs.add("", "", "is not UTF-8")
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := value(d, "", 0, errs)
	if err == nil {
		if _, e := d.Token(); e != io.EOF {
			err = fmt.Errorf("bytes after the value")
		}
	}
	if err != nil {
		at := data[:min(int(d.InputOffset()), len(data))]
		text := err.Error()
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			text = "ends in the middle"
		}
		errs.add("", fmt.Sprintf("line %d", 1+bytes.Count(at, []byte("\n"))), "is not JSON: "+text)
		return nil
	}
	if v == nil {
		errs.add("", "", "is null")
	}
	return v
}

func value(d *json.Decoder, path string, depth int, errs *Errors) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d levels deep", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case string:
		if strings.ContainsRune(t, 0) {
			errs.add(path, "", "holds a NUL character")
		}
		return t, nil
	case json.Delim:
		if t == '[' {
			list := []any{}
			for d.More() {
				v, err := value(d, path+"["+strconv.Itoa(len(list))+"]", depth+1, errs)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := d.Token()
			return list, err
		}
		object := map[string]any{}
		for d.More() {
			t, err := d.Token()
			if err != nil {
				return nil, err
			}
			key := t.(string) // the decoder gives nothing else before a colon
			if _, twice := object[key]; twice {
				errs.add(join(path, key), "", "is there twice")
			}
			v, err := value(d, join(path, key), depth+1, errs)
			if err != nil {
				return nil, err
			}
			object[key] = v
		}
		_, err := d.Token()
		return object, err
	}
	if n, ok := t.(json.Number); ok && strings.Trim(n.String(), "-0123456789") != "" || len(n) > 15 {
		errs.add(path, "at most 15 digits, no point and no exponent", "is not a whole number")
		return json.Number("0"), nil
	}
	return t, nil
}

// join is the JSON path of a member.
func join(path, key string) string {
	if len(key) > 60 {
		key = key[:60] + "…"
	}
	if strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-$") != "" || key == "" {
		return path + "[" + strconv.QuoteToASCII(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// joinAll is the JSON path of a location in v; a step that is an index there is written as one.
func joinAll(v any, location []string) string {
	path := ""
	for _, step := range location {
		switch at := v.(type) {
		case []any:
			path += "[" + step + "]"
			v = nil
			if i, err := strconv.Atoi(step); err == nil && i < len(at) {
				v = at[i]
			}
		case map[string]any:
			path, v = join(path, step), at[step]
		default:
			path = join(path, step)
		}
	}
	return path
}
