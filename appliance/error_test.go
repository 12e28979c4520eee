package appliance_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/novox/mesh/appliance"
)

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		kind appliance.Kind
	}{
		{nil, ""},
		{errors.New("open x"), appliance.Internal},
		{fmt.Errorf("join: %w", appliance.Errorf(appliance.Conflict, "name taken")), appliance.Conflict},
	} {
		if got := appliance.KindOf(c.err); got != c.kind {
			t.Errorf("kind of %v is %q, not %q", c.err, got, c.kind)
		}
	}
}
