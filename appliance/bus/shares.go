package bus

import "golang.org/x/time/rate"

// What one sender may say on a subject without a stream. Nobody needs as much; but everybody waits in one line, so that a sender without
// a bound would keep the others' words from being heard.
const (
	senderPerSec = 100
	senderAtOnce = 1000
	maxSenders   = 20_000 // remembered; beyond, all begin anew
)

// shares is used by one subscription's goroutine only.
type shares struct{ per map[string]*rate.Limiter }

// allow costs next to nothing: it is asked before a message is looked at.
func (s *shares) allow(sender string) bool {
	limiter := s.per[sender]
	if limiter == nil {
		if s.per == nil || len(s.per) >= maxSenders {
			s.per = map[string]*rate.Limiter{}
		}
		limiter = rate.NewLimiter(senderPerSec, senderAtOnce)
		s.per[sender] = limiter
	}
	return limiter.Allow()
}
