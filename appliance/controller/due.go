package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
)

// due are the nodes for which the bus users, the first plan and the declaration have to be composed. What fails stays due.
type due struct {
	mu    sync.Mutex
	nodes map[appliance.NodeID]bool
	wake  chan struct{}
}

func newDue() due { return due{nodes: map[appliance.NodeID]bool{}, wake: make(chan struct{}, 1)} }

// add waits for nothing. Without a node it asks for the bus users alone.
func (d *due) add(nodes ...appliance.NodeID) {
	d.mu.Lock()
	for _, id := range nodes {
		d.nodes[id] = true
	}
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *due) take() []appliance.NodeID {
	d.mu.Lock()
	defer d.mu.Unlock()
	nodes := make([]appliance.NodeID, 0, len(d.nodes))
	for id := range d.nodes {
		nodes = append(nodes, id)
	}
	clear(d.nodes)
	return nodes
}

// maxPause is the longest between two tries to compose what failed.
const maxPause = 30 * time.Second

// catchUp composes what is due. What fails comes round again by itself and keeps nothing waiting.
func (c *Controller) catchUp(ctx context.Context) error {
	pause := time.Second
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.due.wake:
		}
		nodes := c.due.take()
		if err := c.welcome(ctx, nodes); err == nil {
			pause = time.Second
		} else if ctx.Err() == nil {
			c.log.Error("compose, trying again", "nodes", nodes, "in", pause, "err", err)
			time.AfterFunc(pause, func() { c.due.add(nodes...) })
			pause = min(2*pause, maxPause)
		}
	}
}

// welcome lets recorded nodes in and tells them what they are.
func (c *Controller) welcome(ctx context.Context, nodes []appliance.NodeID) error {
	users := c.composeUsers(ctx)
	if len(nodes) == 0 {
		return users
	}
	c.members.changed()
	err := c.approveFirst(ctx)
	if err == nil {
		err = c.declare(ctx, nodes)
	}
	return errors.Join(users, err)
}
