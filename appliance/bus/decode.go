package bus

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// followed finds the entry of the controller's list that a subject belongs to.
func followed(subject string) (wire.Followed, bool) {
	for _, f := range wire.FollowedSubjects {
		if matches(f.Subject, subject) {
			return f, true
		}
	}
	return wire.Followed{}, false
}

// matches knows stars only: no followed subject has more.
func matches(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	if len(p) != len(s) {
		return false
	}
	for i := range p {
		if s[i] == "" || p[i] != "*" && p[i] != s[i] {
			return false
		}
	}
	return true
}

// recognise is the decoder in front of every handler of a followed subject: it says why a message does not belong there, and fills in
// its header otherwise.
func recognise(m *Message) (reason string) {
	f, ok := followed(m.Subject)
	if !ok {
		return "unknown subject " + appliance.Quote(m.Subject)
	}
	h, err := wire.Peek(m.Data)
	switch {
	case err != nil:
		return err.Error()
	case !slices.Contains(f.Kinds, h.Kind):
		return fmt.Sprintf("kind %s does not belong on %s", appliance.Quote(string(h.Kind)), f.Subject)
	}
	m.Header = h
	return ""
}

// guard runs a handler; a panic is its reason to set the message aside.
func (l *Link) guard(m Message, run func()) (reason string) {
	defer func() {
		if r := recover(); r != nil {
			l.count.panics.Add(1)
			reason = fmt.Sprintf("handler panicked: %v", r)
			l.log.Error("bus handler panicked", "subject", m.Subject, "panic", r, "stack", string(debug.Stack()))
		}
	}()
	run()
	return ""
}
