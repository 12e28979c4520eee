package bus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Broken is the reason of an error about streams that can be written no more until their broker has been restarted.
const Broken appliance.Reason = "stream-broken"

const (
	wroteWithin = 2 * time.Second
	askedWithin = 2 * time.Second
	probeBytes  = 8 << 10 // more than fits behind what is there already, so that the disk has to give something
)

// Probe writes to the stream that is there for it, which finds a disk that takes nothing more, and asks each stream whether an earlier
// write failed: from then on it answers no publisher, and says so nowhere else (GEN-9). No message is touched but the probe's own, and
// no consumer sees anything.
func Probe(ctx context.Context, l *Link) error {
	nc, err := l.connected()
	if err != nil {
		return fmt.Errorf("probe streams: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("probe streams: %w", err)
	}
	writing, cancel := context.WithTimeout(ctx, wroteWithin)
	defer cancel()
	wrote := l.PublishStored(writing, wire.SubjectProbe, make([]byte, probeBytes))
	for _, cfg := range streams() {
		err = errors.Join(err, askStream(ctx, js, cfg.Name))
	}
	if err = errors.Join(err, wrote); err != nil { // a broken stream, which says why, comes before the silence
		return fmt.Errorf("probe streams: %w", err)
	}
	return nil
}

// askStream asks for the removal of a message that cannot be there yet. Before it finds that, a stream looks whether it may write.
func askStream(ctx context.Context, js jetstream.JetStream, name string) error {
	ctx, cancel := context.WithTimeout(ctx, askedWithin)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", name, err)
	}
	err = stream.DeleteMsg(ctx, math.MaxUint64)
	if !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		return fmt.Errorf("ask stream %s: %w", name, err)
	}
	_, why, _ := strings.Cut(err.Error(), "description=")
	if strings.Contains(why, "EOF") { // it went as far as to look for the message
		return nil
	}
	return appliance.Errorf(appliance.Unavailable, "stream %s can be written no more: %s", name, why).WithReason(Broken)
}
