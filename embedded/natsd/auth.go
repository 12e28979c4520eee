package natsd

import (
	"encoding/base64"
	"slices"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// user is one entry of the users file, its subjects sorted.
type user struct {
	account            string
	publish, subscribe []string
}

func (u user) equal(v user) bool {
	return u.account == v.account && slices.Equal(u.publish, v.publish) && slices.Equal(u.subscribe, v.subscribe)
}

// auth admits clients by the nkey that signed their nonce, and knows which
// connection belongs to whom.
type auth struct {
	mu      sync.Mutex
	ns      *server.Server
	share   int                 // connections that one user may have
	users   map[string]user     // by nkey
	clients map[string][]uint64 // nkey to connections; closed ones linger until the user's next
}

// serve names the server, before it listens.
func (a *auth) serve(ns *server.Server, share int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ns, a.share, a.clients = ns, share, map[string][]uint64{}
}

// Check is asked by the server at every CONNECT.
func (a *auth) Check(c server.ClientAuthentication) bool {
	o := c.GetOpts()
	if c.Kind() != server.CLIENT || !signed(o.Nkey, o.Sig, c.GetNonce()) {
		return false
	}
	// Held until the connection is noted: a change of users sees it either
	// before it is admitted or among those to look at.
	a.mu.Lock()
	defer a.mu.Unlock()
	u, ok := a.users[o.Nkey]
	if !ok {
		return false
	}
	acc, err := a.ns.LookupAccount(u.account)
	if err != nil {
		return false
	}
	if !a.note(c.GetID(), o.Nkey) {
		return false
	}
	c.RegisterUser(&server.User{Username: o.Nkey, Account: acc, Permissions: &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: u.publish},
		Subscribe: &server.SubjectPermission{Allow: u.subscribe},
	}})
	return true
}

// signed says whether the key's owner signed this connection's nonce.
func signed(nkey, signature string, nonce []byte) bool {
	if nkey == "" || signature == "" || len(nonce) == 0 {
		return false
	}
	sig, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil {
		// Older clients pad with the standard alphabet.
		if sig, err = base64.StdEncoding.DecodeString(signature); err != nil {
			return false
		}
	}
	pub, err := nkeys.FromPublicKey(nkey)
	return err == nil && pub.Verify(nonce, sig) == nil
}

// note records a connection, unless its user has its share already: whoever
// holds one credential cannot take everybody's place. The server does not say
// when a connection closes, so the closed ones are dropped here.
func (a *auth) note(id uint64, nkey string) bool {
	open := slices.DeleteFunc(a.clients[nkey], func(id uint64) bool { return a.ns.GetClient(id) == nil })
	full := len(open) >= a.share
	if !full {
		open = append(open, id)
	}
	a.clients[nkey] = open
	return !full
}

// swap makes users the ones who count and cuts exactly those connections whose
// user is gone or has other rights.
func (a *auth) swap(users map[string]user) {
	var cut []uint64
	a.mu.Lock()
	for nkey, ids := range a.clients {
		now, ok := users[nkey]
		if !ok || !now.equal(a.users[nkey]) {
			cut = append(cut, ids...)
			delete(a.clients, nkey)
		}
	}
	a.users = users
	ns := a.ns
	a.mu.Unlock()
	for _, id := range cut {
		// An error says that it has gone by itself.
		_ = ns.DisconnectClientByID(id)
	}
}
