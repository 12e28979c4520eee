package run

import (
	"bytes"
	"context"
)

const maxLine = 32 << 10

// lineWriter cuts what is written into lines; a longer one comes in parts.
type lineWriter struct {
	emit func([]byte) error
	end  context.CancelFunc
	rest []byte
	err  error
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for w.err == nil {
		line, rest, whole := bytes.Cut(w.rest, []byte("\n"))
		if !whole && len(line) < maxLine {
			return len(p), nil
		}
		if len(line) > maxLine {
			line, rest = w.rest[:maxLine], w.rest[maxLine:]
		}
		if w.err = w.emit(line); w.err != nil {
			w.end()
		}
		w.rest = bytes.Clone(rest)
	}
	return 0, w.err
}

func (w *lineWriter) flush() error {
	if len(w.rest) == 0 {
		return nil
	}
	return w.emit(w.rest)
}
