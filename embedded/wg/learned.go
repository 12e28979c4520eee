package wg

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"time"
)

const (
	learnedPause = 250 * time.Millisecond // between a peer's move and the file, and between two writes
	learnedBound = 2 << 20                // bytes read; maxPeers fill half of it
)

// learned keeps on disk where the peers were last heard, so that a restarted process knows whom to call. It holds hints: a lost
// or torn file costs what a first start costs, and so it is not forced to the disk.
type learned struct {
	file  string // empty: not kept
	log   *slog.Logger
	known map[Key]netip.AddrPort // what the file said at start
	moved chan struct{}
}

func openLearned(file string, log *slog.Logger) *learned {
	l := &learned{file: file, log: log, moved: make(chan struct{}, 1)}
	if file == "" {
		return l
	}
	known, err := readLearned(file)
	if err != nil {
		log.Warn("learned endpoints ignored", "err", err)
	}
	l.known = known
	return l
}

func readLearned(file string) (map[Key]netip.AddrPort, error) {
	f, err := os.Open(file)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, learnedBound+1))
	if err != nil {
		return nil, err
	}
	if len(data) > learnedBound {
		return nil, fmt.Errorf("read learned endpoints %q: more than %d bytes; delete the file", file, learnedBound)
	}
	known, err := parseLearned(data)
	if err != nil {
		return nil, fmt.Errorf("read learned endpoints %q: %w", file, err)
	}
	return known, nil
}

func parseLearned(data []byte) (map[Key]netip.AddrPort, error) {
	var known map[Key]netip.AddrPort
	decoder := json.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&known); err != nil {
		return nil, err
	}
	for key, at := range known {
		if !at.IsValid() || at.Port() == 0 {
			return nil, fmt.Errorf("peer %s: %q is no endpoint", key, at)
		}
	}
	return known, nil
}

// note says that some peer moved. It never waits.
func (l *learned) note() {
	select {
	case l.moved <- struct{}{}:
	default:
	}
}

// run writes the file after moves until stop is closed, and then what is left.
func (l *learned) run(stop <-chan struct{}, now func() map[Key]netip.AddrPort) {
	for {
		select {
		case <-l.moved:
		case <-stop:
			select {
			case <-l.moved:
				l.write(now())
			default:
			}
			return
		}
		select {
		case <-time.After(learnedPause):
		case <-stop:
		}
		l.write(now())
	}
}

func (l *learned) write(at map[Key]netip.AddrPort) {
	if l.file == "" {
		return
	}
	data, err := json.MarshalIndent(at, "", "  ")
	if err == nil {
		err = replaceFile(l.file, append(data, '\n'))
	}
	if err != nil {
		l.log.Warn("learned endpoints not kept", "file", l.file, "err", err)
	}
}

func replaceFile(file string, data []byte) error {
	temp := file + ".new" // one writer, and what a killed one left is overwritten
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, file)
}
