package bus

import "time"

// SetClock gives the link's window another clock; before Follow.
func SetClock(l *Link, now func() time.Time) { l.now = now }

var Recognise = recognise

const (
	MaxPerSubject = maxPerSubject
	MaxDeadBytes  = maxDeadBytes
)
