package agent

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// between is the least time between two looks that were asked for.
const between = time.Second

// check looks at everything declared, and puts right what is not as it was made (DEC-6).
func (a *Agent) check(ctx context.Context) {
	a.look, a.lookAsked = time.Time{}, false
	if a.held.version == 0 {
		return // nothing is held, or only which binary to become
	}
	a.engine.looking = true
	a.reapply(ctx)
	a.engine.looking = false
	a.setOverlay(ctx) // peers and names, of which no resource tells
}

// lookLater follows each pass, whatever it was for. Where something failed, the next try of it looks at everything; a look that was asked
// for is due all the same, since only that puts drift right on an adopted node.
func (a *Agent) lookLater() {
	if a.looked = time.Now(); a.lookAsked {
		return
	}
	a.look = time.Time{}
	if rests(a.state.applied.Outcomes) {
		a.look = a.looked.Add(a.cfg.Check + rand.N(a.cfg.Check/10+1))
	}
}

// noticed takes notices.
func (a *Agent) noticed(data []byte) {
	if err := a.takeNotice(data); err != nil {
		a.refused(wire.KindNotice, err)
	}
}

// takeNotice verifies a notice and wakes the loop. Played again, within its two minutes to an agent that has just started, one that asks
// for a look causes another, and nothing else; so its time is not kept on disk, and looks are bounded to one a second. What else a notice
// asks for counts once, its time being on disk before it is done; or is so for good, as that this machine is a node no more.
func (a *Agent) takeNotice(data []byte) error {
	doc, err := a.cfg.open(data, wire.KindNotice, string(a.cfg.Node))
	if err != nil {
		return err
	}
	if off := time.Since(doc.signed).Abs(); off > wire.NoticeWindow {
		return appliance.Errorf(appliance.Denied, "hear notice: signed at %s, here it is %s", doc.signed.Format(time.RFC3339), now().Format(time.RFC3339)).
			WithReason("clock").WithHint("the clocks of hub and node must agree within two minutes; set this machine's clock")
	}
	n, err := wire.ParseNotice(doc.body)
	if err != nil {
		return err
	}
	if n.Removed != "" && !a.isOwn(n.Removed) {
		return nil // meant for the machine that was this node before, or is now
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !doc.signed.After(a.notice) {
		return appliance.Errorf(appliance.Conflict, "hear notice: of %s, a later one was heard already", doc.signed.Format(time.RFC3339Nano)).WithReason(wire.Superseded)
	}
	if n.Restart != "" && len(a.wishes.restarts) == maxWishes || n.Purge != "" && len(a.wishes.purges) == maxWishes {
		return appliance.Errorf(appliance.NotReady, "hear notice: %d of its kind wait already", maxWishes).WithHint("ask again in a moment")
	}
	a.notice = doc.signed
	a.wishes.check = a.wishes.check || n.Check
	if n.Restart != "" {
		a.wishes.restarts = append(a.wishes.restarts, n.Restart)
	}
	a.wishes.removed = a.wishes.removed || n.Removed != ""
	if n.Purge != "" {
		a.wishes.purges = append(a.wishes.purges, n.Purge)
	}
	select {
	case a.notices <- struct{}{}:
	default: // one look serves both
	}
	return nil
}

// wishes are what notices asked for and the loop has not done yet.
type wishes struct {
	check    bool
	removed  bool // this machine shall be a node no more
	restarts []appliance.InstanceName
	purges   []appliance.InstanceName
}

// maxWishes bounds those of each kind that wait.
const maxWishes = 16

// hearNotice does what was asked for. The next look comes at once, or as soon after the last as it may.
func (a *Agent) hearNotice(ctx context.Context) {
	if a.accept(wire.KindNotice) {
		a.report(nil)
	}
	a.mu.Lock()
	asked, signed := a.wishes, a.notice
	a.wishes = wishes{}
	a.mu.Unlock()
	if asked.removed {
		a.hearRemoval()
		return
	}
	if len(asked.restarts)+len(asked.purges) > 0 && a.remember(signed) {
		a.restart(ctx, asked.restarts)
		a.purge(ctx, asked.purges)
	}
	if asked.check {
		a.look, a.lookAsked = time.Now(), true
		if soonest := a.looked.Add(between); a.look.Before(soonest) {
			a.look = soonest
		}
	}
}

// remember keeps on disk that a notice was heard, before anything of it is done: played again, it finds itself known.
func (a *Agent) remember(signed time.Time) bool {
	before := a.state.applied.Noticed
	a.state.applied.Noticed = signed
	if err := a.state.saveApplied(); err != nil {
		a.state.applied.Noticed = before
		a.refuse(wire.KindNotice, appliance.Errorf(appliance.Unavailable, "hear notice: what it asks for cannot be kept: %w", err))
		return false
	}
	return true
}

// drifted says how r is not what was made and recorded; empty where it was not made so yet. What ends with the machine is no drift
// when the agent starts: what runs, and the overlay.
func (e *Engine) drifted(r wire.Resource, have *Record, seen host.Observation) string {
	if seen.Matches || have == nil || have.Kept || !have.Declared || !sameResource(have.Resource, r) {
		return ""
	}
	if e.waking && (r.Kind.Runs() || r.Kind == wire.Overlay) {
		return ""
	}
	i := slices.IndexFunc(e.state.applied.Outcomes, func(o wire.Outcome) bool { return o.ID == r.ID })
	if i < 0 {
		return ""
	}
	if last := e.state.applied.Outcomes[i]; !made(last) {
		return last.Drift // not put right yet
	}
	if seen.Present {
		return cmp.Or(seen.Differs, "it differs")
	}
	return cmp.Or(seen.Differs, "gone")
}

func made(o wire.Outcome) bool { return o.Status == wire.Unchanged || o.Status == wire.Applied }

// sum is the account of a declaration after one more pass over it. What earlier passes did, removed or found drifted stays told, so that
// a pass that finds nothing to do says nothing new.
func sum(before, now []wire.Outcome) []wire.Outcome {
	had, has := map[string]wire.Outcome{}, map[string]bool{}
	for _, o := range now {
		has[o.ID] = true
	}
	var out []wire.Outcome
	for _, o := range before {
		had[o.ID] = o
		if !has[o.ID] && (o.Status == wire.Removed || o.Status == wire.StatusKept) {
			out = append(out, o)
		}
	}
	for _, o := range now {
		earlier := had[o.ID]
		if o.Status == wire.Unchanged && earlier.Status == wire.Applied {
			o = earlier
		}
		o.Drift = cmp.Or(o.Drift, earlier.Drift)
		out = append(out, o)
	}
	return out
}
