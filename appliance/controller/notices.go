package controller

import (
	"context"
	"slices"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// checkNodes asks nodes to look now (DEC-6). It records nothing: played again within its time, the request causes another look.
func (c *Controller) checkNodes(_ context.Context, a asked) (any, error) {
	var ask operators.CheckNodes
	if err := a.read(&ask); err != nil {
		return nil, err
	}
	nodes, err := c.roster.chosen(ask.Nodes)
	if err != nil {
		return nil, err
	}
	body, err := wire.Encode(wire.Notice{Version: wire.Version, Check: true})
	if err != nil {
		return nil, err
	}
	out := operators.Checked{Nodes: []appliance.NodeName{}}
	for id, name := range nodes {
		data, err := wire.Seal(c.header(wire.KindNotice, string(id)), body, c.cfg.Keys.Signing)
		if err == nil {
			err = c.cfg.Link.Publish(wire.NoticeSubject(id), data)
		}
		if err != nil {
			return nil, err
		}
		out.Nodes = append(out.Nodes, name)
	}
	slices.Sort(out.Nodes)
	return out, nil
}
