package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/overlay"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/genesis/probe"
)

// enter reaches the hub, proves the keys and is admitted.
func (j *joining) enter(ctx context.Context) (enrol.Admission, error) {
	ctx, cancel := context.WithTimeout(ctx, j.Timeout)
	defer cancel()
	link, err := j.reach(ctx)
	if err != nil {
		return enrol.Admission{}, err
	}
	defer link.Close()
	keys, err := j.keys()
	if err != nil {
		return enrol.Admission{}, err
	}
	for {
		a, err := j.claim(ctx, link, keys)
		switch {
		case err == nil:
			return a, nil
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return a, appliance.Errorf(appliance.Unavailable, "join: no answer from the hub's controller within %s", j.Timeout).
				WithHint("the broker is there; is the hub's store? Look there, then run the same command again").WithNext("mesh status   (on the hub)")
		case ctx.Err() != nil || !enrol.Passing(err):
			return a, err
		}
		j.tell("waiting: " + err.Error())
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
	}
}

const (
	dialWithin   = 5 * time.Second       // for something to accept a connection to an address, and for it to speak
	answerWithin = 10 * time.Second      // for a broker to admit us, once something accepts connections
	believeAfter = 2 * time.Second       // what is refused for this long stays refused: a new token may be composed in a moment
	lookEvery    = 20 * time.Millisecond // at how the link is
)

// reach connects to the first of the token's addresses that is the hub. What is wrong with each is said, and the worst of it returned.
func (j *joining) reach(ctx context.Context) (*bus.Link, error) {
	key, err := j.token.BusKey()
	if err != nil {
		return nil, err
	}
	var all []error
	for _, address := range j.token.Addresses {
		j.tell("reaching the hub at " + address)
		if err := dial(ctx, address); err != nil {
			all = append(all, err)
			continue
		}
		tls := pki.PinnedTLS(j.token.Authority, pki.BrokerName(j.token.Mesh), pki.Clock(nil))
		begun := time.Now()
		link, err := bus.Connect(ctx, bus.Options{Endpoints: []string{address}, TLS: tls, User: wire.TokenUser(j.token.ID), Key: key, Logger: j.Log})
		if err != nil {
			return nil, err
		}
		if err := admitted(ctx, link, address, begun); err != nil {
			link.Close()
			all = append(all, err)
			continue
		}
		return link, nil
	}
	return nil, mostTelling(all)
}

// admitted waits until the broker takes us, or until what it says instead can be believed.
func admitted(ctx context.Context, link *bus.Link, address string, begun time.Time) error {
	for {
		s := link.Status()
		if s.Connected {
			return nil
		}
		took := time.Since(begun)
		if refusal := explain(address, s.LastError); took > answerWithin || took > believeAfter && appliance.KindOf(refusal) == appliance.Denied {
			return refusal
		}
		select {
		case <-ctx.Done():
			return explain(address, s.LastError)
		case <-time.After(lookEvery):
		}
	}
}

func dial(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err == nil {
		return speaks(ctx, address, c)
	}
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return appliance.Errorf(appliance.Unavailable, "reach the hub at %s: its name is not known here: %w", address, err).WithReason("address").
			WithHint("compare the address with the hub's, or join with a line for another of its addresses").WithNext("mesh token create   (on the hub)")
	}
	return appliance.Errorf(appliance.Unavailable, "reach the hub at %s: %w", address, err).WithReason("address").
		WithHint("is the hub running, is this its address, and does a firewall let the port through?").WithNext("mesh status   (on the hub)")
}

// speaks hears whether a broker is at the other end: it is the one that begins.
func speaks(ctx context.Context, address string, c net.Conn) error {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	const begins = "INFO "
	said := make([]byte, len(begins))
	n, err := io.ReadFull(c, said)
	switch {
	case err == nil && string(said) == begins:
		return nil
	case n > 0:
		return notBroker(address, "it says "+appliance.Quote(string(said[:n])))
	case ctx.Err() != nil:
		return notBroker(address, "it says nothing")
	}
	return notBroker(address, "it hangs up")
}

func notBroker(address, said string) error {
	return appliance.Errorf(appliance.Unavailable, "reach the hub at %s: something answers there, but not as a broker: %s", address, said).WithReason("port").
		WithHint("compare address and port with the hub's").WithNext("mesh token create   (on the hub)")
}

// explain makes a refusal out of what the connection came to.
func explain(address, said string) error {
	said = strings.TrimPrefix(said, "nats: tls error: ")
	switch {
	case strings.Contains(said, "does not contain the pinned authority"), strings.Contains(said, "of another authority"), strings.Contains(said, "calls itself"):
		return appliance.Errorf(appliance.Denied, "reach the hub at %s: it is not the hub that made this token: %s", address, said).WithReason(enrol.Pin).
			WithHint("another mesh or a proxy answers there, or the hub was founded anew; make a new token").WithNext("mesh token create   (on the hub)")
	case strings.Contains(said, "the certificate holds from"):
		return appliance.Errorf(appliance.Denied, "reach the hub at %s: %s", address, said).WithReason(enrol.Clock).
			WithHint("set this machine's clock").WithNext("timedatectl set-ntp true")
	case strings.Contains(strings.ToLower(said), "authorization"):
		return appliance.Errorf(appliance.Denied, "reach the hub at %s: it knows no such token", address).WithReason(enrol.TokenUnknown).
			WithHint("it ended more than seven days ago, or the hub's records were restored from before it was made").WithNext("mesh token create   (on the hub)")
	case said == "":
		said = "nothing within " + answerWithin.String()
	}
	return notBroker(address, said)
}

// mostTelling prefers what was refused by something that answered over what could not be reached.
func mostTelling(all []error) error {
	for _, err := range all {
		if appliance.KindOf(err) == appliance.Denied {
			return err
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return appliance.Errorf(appliance.Unavailable, "reach the hub: %w", errors.Join(all...)).WithReason("address").WithHint("none of the token's addresses leads to the hub from here")
}

// claim says hello, answers the challenge, and reads the answer.
func (j *joining) claim(ctx context.Context, link *bus.Link, keys identity.NodeKeys) (enrol.Admission, error) {
	var nonce string
	j.tell("saying hello")
	data, err := j.ask(ctx, link, func(reply string) (data []byte, err error) {
		data, nonce, err = enrol.MakeHello(j.token, reply, j.Now())
		return data, err
	})
	if err != nil {
		return enrol.Admission{}, err
	}
	challenge, err := enrol.OpenChallenge(j.token, nonce, data, j.Now())
	if err != nil {
		return enrol.Admission{}, err
	}
	routes, err := probe.Routes()
	if err != nil {
		return enrol.Admission{}, err
	}
	if err := overlay.Overlaps(challenge.Range, routes); err != nil {
		return enrol.Admission{}, err
	}
	j.tell("claiming the name " + string(j.Name))
	data, err = j.ask(ctx, link, func(reply string) ([]byte, error) {
		claim, err := enrol.MakeClaim(j.token, challenge, keys, enrol.Claimant{Name: j.Name, Labels: j.Labels, Adopt: j.Adopt, Capabilities: j.machine.Capabilities()}, reply, j.Now())
		if err == nil {
			err = durable.WriteFile(j.claimedFile(), []byte(string(j.token.ID)+"\n"), 0o600)
		}
		return claim, err
	})
	if err != nil {
		return enrol.Admission{}, err
	}
	return enrol.OpenAnswer(j.token, nonce, keys, data, pki.Clock(nil)())
}

// askWithin is how long one question may go unanswered before it is asked again; asking twice changes nothing.
const askWithin = 10 * time.Second

func (j *joining) ask(ctx context.Context, link *bus.Link, make func(reply string) ([]byte, error)) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	var unmade error
	data, err := link.Request(ctx, wire.EnrolSubject(j.token.ID), func(reply string) (question []byte, err error) {
		question, unmade = make(reply)
		return question, unmade
	})
	switch {
	case unmade != nil:
		return nil, unmade
	case err != nil:
		return nil, fmt.Errorf("ask the hub: %w", err)
	}
	return data, nil
}
