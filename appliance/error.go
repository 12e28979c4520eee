package appliance

import (
	"errors"
	"fmt"
)

// Kind is the code of an error that crosses the bus. Codes are never renamed.
type Kind string

const (
	Invalid     Kind = "invalid"     // the input breaks a rule
	NotFound    Kind = "not-found"   // no such thing
	Conflict    Kind = "conflict"    // the thing exists, or something holds it
	Denied      Kind = "denied"      // not allowed, or not proven
	NotReady    Kind = "not-ready"   // may succeed later without anybody changing anything
	Unavailable Kind = "unavailable" // something needed is out of reach
	Internal    Kind = "internal"    // our fault
)

// Reason names one refusal for programs (a joiner, a script); stable like Kind. Most errors need none.
type Reason string

// Error is what a person is told: what happened, a hint about the rule, and the next command.
type Error struct {
	Kind   Kind   `json:"kind"`
	Reason Reason `json:"reason,omitempty"`
	Text   string `json:"error"`          // operation and object, lower case
	Hint   string `json:"hint,omitempty"` // the rule, or the way out
	Next   string `json:"next,omitempty"` // a command to type
	cause  error
}

func (e *Error) Error() string { return e.Text }
func (e *Error) Unwrap() error { return e.cause }

// Errorf makes an Error; a %w operand becomes its cause.
func Errorf(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Text: err.Error(), cause: errors.Unwrap(err)}
}

func (e *Error) WithHint(hint string) *Error     { c := *e; c.Hint = hint; return &c }
func (e *Error) WithNext(command string) *Error  { c := *e; c.Next = command; return &c }
func (e *Error) WithReason(reason Reason) *Error { c := *e; c.Reason = reason; return &c }

// AsError gives the Error inside err, or wraps err as Internal. It keeps err's own text where that says more.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Kind: Internal, Text: err.Error(), cause: err}
	}
	if err.Error() == e.Text {
		return e
	}
	c := *e
	c.Text, c.cause = err.Error(), err
	return &c
}

// KindOf is the kind of err, Internal when it has none; no error has no kind.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	return AsError(err).Kind
}

// IsReason says whether err carries the reason.
func IsReason(err error, reason Reason) bool {
	var e *Error
	return errors.As(err, &e) && e.Reason == reason
}
