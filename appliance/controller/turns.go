package controller

import (
	"context"
	"sync"

	"github.com/novox/mesh/appliance"
)

// turns bounds the operators' requests: those under way together, and those of one operator, so that one who floods waits for itself.
type turns struct {
	slots chan struct{}

	mu  sync.Mutex
	per map[appliance.OperatorID]int // waiting or under way
}

const (
	maxRequests    = 8
	maxPerOperator = 16
)

func newTurns() turns {
	return turns{slots: make(chan struct{}, maxRequests), per: map[appliance.OperatorID]int{}}
}

func (t *turns) enter(id appliance.OperatorID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.per[id] >= maxPerOperator {
		return appliance.Errorf(appliance.NotReady, "hear request: %d requests of this operator are under way already", maxPerOperator).WithHint("ask again in a moment")
	}
	t.per[id]++
	return nil
}

func (t *turns) leave(id appliance.OperatorID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.per[id]--; t.per[id] == 0 {
		delete(t.per, id)
	}
}

// wait is for a slot; false when ctx ends first.
func (t *turns) wait(ctx context.Context) bool {
	select {
	case t.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t *turns) done() { <-t.slots }
