package controller

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// removeNode takes a node out of the mesh, whether its machine is there or not (NODE-8).
func (c *Controller) removeNode(ctx context.Context, a asked, ask operators.RemoveNode) (any, error) {
	id, err := c.node(ctx, ask.Node)
	if err != nil {
		return nil, err
	}
	done, err := c.remove(ctx, id, a.by.Who, func() (store.RemovedNode, error) { return c.cfg.Store.RemoveNode(ctx, a.by, id) })
	if err != nil {
		return nil, err
	}
	out := operators.RemovedNode{Node: done.Name, ID: done.ID, Instances: []appliance.InstanceName{}, Revoked: done.Revoked, Knows: []string{}}
	for _, i := range done.Instances {
		out.Instances = append(out.Instances, i.Instance)
	}
	return out, nil
}

// remove records that a node is none and has broker and nodes know at once; what fails of that comes round again.
func (c *Controller) remove(ctx context.Context, id appliance.NodeID, by string, record func() (store.RemovedNode, error)) (store.RemovedNode, error) {
	done, err := record()
	if err != nil {
		return done, err
	}
	c.roster.remove(id)
	if err := c.composeUsers(ctx); err != nil {
		c.log.Error("compose bus users", "err", err)
		c.due.add()
	}
	if err := c.composeMembers(ctx); err != nil {
		c.log.Error("compose membership", "err", err)
		c.members.changed()
	}
	c.log.Info("node removed", "node", done.Name, "id", id, "by", by)
	return done, nil
}

// hearLeaving removes a node that says it leaves.
func (c *Controller) hearLeaving(ctx context.Context, who store.Speaker) bus.Verdict {
	id, by := who.Node, store.By{Who: wire.NodeUser(who.Node), At: time.Now()}
	_, err := c.remove(ctx, id, by.Who, func() (store.RemovedNode, error) { return c.cfg.Store.LeaveNode(ctx, by, who) })
	if kind := appliance.KindOf(err); err != nil && (kind == appliance.Conflict || kind == appliance.NotFound) {
		return bus.Dead(err.Error())
	}
	return c.judged("remove node "+string(id), err)
}

// replaceNode makes the token with which another machine takes a node's place. Until it does, the present one stays.
func (c *Controller) replaceNode(ctx context.Context, a asked, ask operators.ReplaceNode) (any, error) {
	id, err := c.node(ctx, ask.Node)
	if err != nil {
		return nil, err
	}
	return c.makeToken(ctx, a.by, operators.NewToken{TTL: ask.TTL, Name: ask.Node}, id)
}

// hearDeparted answers an alive of a machine that is a node no more: it is told so, and under which key. It says whether it is one.
func (c *Controller) hearDeparted(id appliance.NodeID, m bus.Message) bool {
	identity, told := c.roster.departedAs(id, m.Data, c.mesh.ID)
	if identity == nil || told {
		return identity != nil
	}
	body, err := wire.Encode(wire.Notice{Version: wire.Version, Removed: base64.StdEncoding.EncodeToString(identity)})
	if err == nil {
		var data []byte
		if data, err = wire.Seal(c.header(wire.KindNotice, string(id)), body, c.cfg.Keys.Signing); err == nil {
			c.publish(wire.NoticeSubject(id), data)
		}
	}
	if err != nil {
		c.log.Error("tell a removed node", "node", id, "err", err)
	}
	return true
}

// hearFlood is told of every message that is not heard since there are too many on its subject. Where a node's machine was replaced the one
// before speaks there too, and nobody could tell which of them says so much: it is let in no more, and its successor is heard (NODE-8).
func (c *Controller) hearFlood(ctx context.Context, subject string) {
	id := appliance.NodeID(wire.Token(subject, 2))
	if subject == wire.AliveSubject(id) && c.roster.shuts(id, time.Now()) {
		go c.shutOut(ctx, id)
	}
}

func (c *Controller) shutOut(ctx context.Context, id appliance.NodeID) {
	any, err := c.cfg.Store.ShutOut(ctx, own(), id)
	if err == nil && any {
		err = errors.Join(c.composeUsers(ctx), c.roster.load(ctx, c.cfg.Store))
	}
	c.log.Warn("shut out who is a node no more: too much came on its subject", "node", id, "err", err)
}

// forgetEvery is how often departed machines and revoked certificates are looked at for whose time is over.
const forgetEvery = time.Hour

func (c *Controller) forget(ctx context.Context) error {
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		if err := c.forgetNow(ctx, time.Now()); err != nil && ctx.Err() == nil {
			c.log.Error("forget departed machines", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// forgetNow lets in no longer whom it has let in for long enough.
func (c *Controller) forgetNow(ctx context.Context, now time.Time) error {
	any, err := c.cfg.Store.Forget(ctx, now)
	if err != nil || !any {
		return err
	}
	c.members.changed()
	if err := errors.Join(c.composeUsers(ctx), c.roster.load(ctx, c.cfg.Store)); err != nil {
		c.due.add()
		return fmt.Errorf("after departed machines were forgotten: %w", err)
	}
	return nil
}
