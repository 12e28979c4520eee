package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/moby/moby/client"

	"github.com/novox/mesh/appliance/wire"
)

const (
	maxLine = 64 << 10    // of a log; a longer one comes in pieces
	pause   = time.Second // before a log that ended is looked at again
)

// Log gives the last lines that the container wrote.
func (e *Engine) Log(ctx context.Context, r wire.Resource, n int) (lines []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = e.Follow(ctx, r, n, false, func(line []byte) error { lines = append(lines, string(line)); return nil })
	return lines, err
}

// Follow gives the last lines that the container wrote and, with follow, those that it writes, also after it was started again or another
// took its place.
func (e *Engine) Follow(ctx context.Context, r wire.Resource, n int, follow bool, emit func([]byte) error) error {
	options := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: follow, Tail: strconv.Itoa(n)}
	last := time.Now().Add(-pause).UTC().Format(time.RFC3339Nano)
	for {
		err := e.read(ctx, r, options, func(stamp string, line []byte) error { last = stamp; return emit(line) })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var theirs *refused
		if !follow || errors.As(err, &theirs) {
			return err
		}
		// What was told is not told again: the engine begins at the time, with it.
		if at, e := time.Parse(time.RFC3339Nano, last); e == nil {
			options.Since, options.Tail = at.Add(time.Nanosecond).Format(time.RFC3339Nano), ""
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// refused is an error of whoever takes the lines.
type refused struct{ error }

func (r *refused) Unwrap() error { return r.error }

func (e *Engine) read(ctx context.Context, r wire.Resource, options client.ContainerLogsOptions, emit func(stamp string, line []byte) error) error {
	c, _, have, err := e.one(ctx, r)
	if err != nil {
		return err
	}
	defer c.Close()
	if have == nil {
		return nil
	}
	stream, err := c.ContainerLogs(ctx, have.ID, options)
	if err != nil {
		return failed("read the log of "+r.ID, err)
	}
	defer stream.Close()
	return failed("read the log of "+r.ID, entries(stream, emit))
}

// entries reads the engine's form of a log: frames of a stream each, which hold a line or a piece of one, behind its time.
func entries(stream io.Reader, emit func(stamp string, line []byte) error) error {
	var pieces [3][]byte // of lines that are not whole yet, by stream
	var header [8]byte
	for {
		if _, err := io.ReadFull(stream, header[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		size, of := binary.BigEndian.Uint32(header[4:]), header[0]
		if size > 1<<20 || int(of) >= len(pieces) {
			return errors.New("not the form of a log")
		}
		frame := make([]byte, size)
		if _, err := io.ReadFull(stream, frame); err != nil {
			return err
		}
		stamp, text, _ := bytes.Cut(frame, []byte(" "))
		text, whole := bytes.CutSuffix(text, []byte("\n"))
		pieces[of] = append(pieces[of], text...)
		if !whole && len(pieces[of]) < maxLine {
			continue
		}
		if err := emit(string(stamp), pieces[of]); err != nil {
			return &refused{err}
		}
		pieces[of] = nil
	}
}
