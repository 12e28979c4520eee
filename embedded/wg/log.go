package wg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tailscale/wireguard-go/device"
)

// logPause is how long a complaint of the device is not repeated. It complains per packet.
const logPause = 30 * time.Second

// deviceLog turns what the device says into records: its chatter at debug, its complaints as warnings.
func deviceLog(log *slog.Logger) *device.Logger {
	out := &device.Logger{Verbosef: device.DiscardLogf}
	if log.Enabled(context.Background(), slog.LevelDebug) {
		out.Verbosef = func(format string, args ...any) { log.Debug(fmt.Sprintf(format, args...)) }
	}
	var mu sync.Mutex
	last := make(map[string]time.Time)
	out.Errorf = func(format string, args ...any) {
		if format == "%v" { // what a configuration call also returns
			out.Verbosef(format, args...)
			return
		}
		for _, arg := range args {
			if err, ok := arg.(error); ok && errors.Is(err, errNoEndpoint) {
				out.Verbosef(format, args...)
				return
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(last[format]) > logPause { // formats are few: they are the device's constants
			last[format] = now
			log.Warn(fmt.Sprintf(format, args...))
		}
	}
	return out
}
