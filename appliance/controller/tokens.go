package controller

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/store"
)

// Bounds of a token.
const (
	maxTTL  = 365 * 24 * time.Hour
	maxUses = 10_000
)

func (c *Controller) createToken(ctx context.Context, a asked, ask operators.NewToken) (any, error) {
	return c.makeToken(ctx, a.by, ask, "")
}

// makeToken makes a token, of a node of its own or in the place of another.
func (c *Controller) makeToken(ctx context.Context, by store.By, ask operators.NewToken, replaces appliance.NodeID) (any, error) {
	if ask.TTL == 0 {
		ask.TTL = time.Hour
	}
	if ask.Uses == 0 {
		ask.Uses = 1
	}
	switch {
	case ask.TTL < time.Second || ask.TTL > maxTTL:
		return nil, appliance.Errorf(appliance.Invalid, "create token: a life of %s; one second to one year", ask.TTL)
	case ask.Uses < 1 || ask.Uses > maxUses:
		return nil, appliance.Errorf(appliance.Invalid, "create token: %d uses; 1 to %d", ask.Uses, maxUses)
	case ask.Name != "" && ask.Uses != 1:
		return nil, appliance.Errorf(appliance.Invalid, "create token: a token that gives a name has one use, not %d", ask.Uses)
	}
	made, err := enrol.NewToken(c.mesh.ID, c.mesh.Endpoints, pki.Fingerprint(c.mesh.Authority), c.cfg.Keys.Signing.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, err
	}
	public, err := made.Record()
	if err != nil {
		return nil, err
	}
	expires := by.At.Add(ask.TTL)
	err = c.cfg.Store.CreateToken(ctx, by, store.Token{ID: made.ID, Name: ask.Name, Replaces: replaces, Labels: ask.Label, Uses: ask.Uses, Bus: public.Bus, Claim: public.Claim, ExpiresAt: expires})
	if err != nil {
		return nil, err
	}
	if err := c.composeUsers(ctx); err != nil { // recorded all the same; usable at the next composition (BUS-4)
		c.log.Error("compose bus users", "err", err)
		c.due.add()
	}
	out := operators.CreatedToken{ID: made.ID, Expires: expires, Serves: c.cfg.Downloads.Architectures()}
	if out.Token, err = made.Encode(); err != nil {
		return nil, err
	}
	for i, endpoint := range c.mesh.Endpoints { // one line per address, each beginning with another one
		line := made
		line.Addresses = append(append([]string{}, c.mesh.Endpoints[i:]...), c.mesh.Endpoints[:i]...)
		text, err := line.Encode()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(endpoint)
		if err != nil {
			return nil, err
		}
		out.Join = append(out.Join, "mesh join "+text)
		out.Curl = append(out.Curl, c.cfg.Downloads.Curl(host, text))
	}
	return out, nil
}

func (c *Controller) listTokens(ctx context.Context, a asked) (any, error) {
	tokens, err := c.cfg.Store.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]operators.Token, 0, len(tokens))
	for _, t := range tokens {
		out = append(out, operators.Token{ID: t.ID, Uses: t.Uses, Used: t.Used, Expires: t.ExpiresAt, State: tokenState(t, a.by.At), Name: t.Name, Replaces: t.Replaces != ""})
	}
	return out, nil
}

func tokenState(t store.Token, now time.Time) string {
	switch {
	case !t.RevokedAt.IsZero():
		return "revoked"
	case t.Used >= t.Uses:
		return "used"
	case !now.Before(t.ExpiresAt):
		return "expired"
	}
	return "open"
}

func (c *Controller) revokeToken(ctx context.Context, a asked, ask operators.RevokeToken) (any, error) {
	if err := c.cfg.Store.RevokeToken(ctx, a.by, ask.ID); err != nil {
		return nil, fmt.Errorf("revoke token: %w", err)
	}
	return struct{}{}, nil
}
