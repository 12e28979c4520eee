package controller

import (
	"strings"
	"testing"

	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// SAFE-2: settings that are too long for one answer together are cut, the longest first, and said to be.
func TestFitSettings(t *testing.T) {
	all := []operators.Setting{{Name: "short", Value: "a"}}
	for range 30 {
		all = append(all, operators.Setting{Name: "long", Value: strings.Repeat("ä", 32<<10)})
	}
	got := fitSettings(all, 1<<20)
	data, err := wire.Encode(got)
	if err != nil || len(data) > 1<<20 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if got[0].Cut || !got[1].Cut || len(got[1].Value) < 16<<10 {
		t.Errorf("cut %v, %v to %d bytes", got[0].Cut, got[1].Cut, len(got[1].Value))
	}
}
