package natsd

import (
	"fmt"
	"log/slog"
	"sync"
)

// logger hands the server's lines to slog and keeps what is wrong. The server
// does not exit on its own fatal errors: it tells its logger and carries on.
type logger struct {
	log  *slog.Logger
	told func() // of an error

	mu    sync.Mutex
	died  error
	wrong error
}

func newLogger(l *slog.Logger, told func()) *logger {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	if told == nil {
		told = func() {}
	}
	return &logger{log: l, told: told}
}

// begin forgets what ended the server before.
func (l *logger) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.died = nil
}

func (l *logger) Noticef(format string, v ...any) { l.log.Info(fmt.Sprintf(format, v...)) }
func (l *logger) Warnf(format string, v ...any)   { l.log.Warn(fmt.Sprintf(format, v...)) }
func (l *logger) Errorf(format string, v ...any) {
	l.log.Error(fmt.Sprintf(format, v...))
	l.told()
}
func (l *logger) Debugf(string, ...any) {}
func (l *logger) Tracef(string, ...any) {}

func (l *logger) Fatalf(format string, v ...any) {
	err := fmt.Errorf(format, v...)
	l.log.Error(err.Error())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.died = err
}

// fail keeps an error that stands until heal.
func (l *logger) fail(err error) {
	l.log.Error(err.Error())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = err
}

func (l *logger) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = nil
}

func (l *logger) fatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.died
}

func (l *logger) last() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.died != nil {
		return l.died
	}
	return l.wrong
}
