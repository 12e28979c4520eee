package controller

import (
	"context"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// checkNodes asks nodes to look now (DEC-6). It records nothing: played again within its time, the request causes another look.
func (c *Controller) checkNodes(_ context.Context, a asked, ask operators.CheckNodes) (any, error) {
	nodes, err := c.roster.chosen(ask.Nodes)
	if err != nil {
		return nil, err
	}
	out := operators.Checked{Nodes: []appliance.NodeName{}}
	for id, name := range nodes {
		if err := c.notify(id, wire.Notice{Version: wire.Version, Check: true}); err != nil {
			return nil, err
		}
		out.Nodes = append(out.Nodes, name)
	}
	slices.Sort(out.Nodes)
	return out, nil
}

// notify sends a node a notice. One at a time: a node takes none that is older than the last it heard.
func (c *Controller) notify(id appliance.NodeID, n wire.Notice) error {
	c.notifying.Lock()
	defer c.notifying.Unlock()
	body, err := wire.Encode(n)
	if err != nil {
		return err
	}
	h := c.header(wire.KindNotice, string(id))
	if !h.Time.After(c.notified.Add(time.Microsecond)) { // what an envelope tells apart
		h.Time = c.notified.Add(time.Microsecond)
	}
	c.notified = h.Time
	data, err := wire.Seal(h, body, c.cfg.Keys.Signing)
	if err != nil {
		return err
	}
	return c.cfg.Link.Publish(wire.NoticeSubject(id), data)
}
