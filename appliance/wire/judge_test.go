package wire_test

import (
	"math"
	"testing"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// DEC-3
func TestJudge(t *testing.T) {
	num := func(e, c uint64) appliance.Number { return appliance.Number{Epoch: e, Counter: c} }
	one, two := appliance.DigestOf([]byte("one")), appliance.DigestOf([]byte("two"))
	for _, c := range []struct {
		name      string
		have, got appliance.Number
		digest    appliance.Digest
		want      appliance.Reason
	}{
		{"first", num(0, 0), num(1, 1), two, ""},
		{"next", num(1, 7), num(1, 8), two, ""},
		{"same again", num(1, 7), num(1, 7), one, ""},
		{"same content, higher number", num(1, 7), num(1, 9), one, ""},
		{"same number, other bytes", num(1, 7), num(1, 7), two, wire.Alarm},
		{"lower counter", num(1, 7), num(1, 6), one, wire.Superseded},
		{"lower epoch, higher counter", num(2, 1), num(1, 99), two, wire.Superseded},
		{"restored: higher epoch, lower counter", num(1, 99), num(2, 1), two, ""},
		{"just near enough", num(1, 7), num(1, 7+wire.Leap), two, ""},
		{"too far ahead", num(1, 7), num(1, 8+wire.Leap), two, wire.Absurd},
		{"too far ahead in a new epoch", num(1, 7), num(2, 8+wire.Leap), two, wire.Absurd},
		{"the last epoch of all", num(1, 7), num(math.MaxUint64, 8), two, wire.Absurd},
		{"too far ahead at first", num(0, 0), num(1, math.MaxUint64), two, wire.Absurd},
	} {
		err := wire.Judge(c.have, one, c.got, c.digest)
		if (err == nil) != (c.want == "") || (err != nil && !appliance.IsReason(err, c.want)) {
			t.Errorf("%s: %v, want reason %q", c.name, err, c.want)
		}
	}
	if err := wire.Judge(num(0, 0), "", num(0, 0), ""); appliance.KindOf(err) != appliance.Invalid {
		t.Errorf("no number at all: %v", err)
	}
}
