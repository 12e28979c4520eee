package wire

import "github.com/novox/mesh/appliance"

// Why a signed document was not taken.
const (
	Superseded appliance.Reason = "superseded" // an older number than the one held
	Alarm      appliance.Reason = "alarm"      // the number held, and other bytes: two documents were signed under one number
	Absurd     appliance.Reason = "absurd"     // so far ahead that nothing could follow
)

// Leap is how far ahead of the held one a number may be.
const Leap = 1 << 40

// Judge decides whether a verified declaration or membership may take the place of the one held: nil when it is newer, or the same
// again. The zero number means that none is held (DEC-3).
func Judge(have appliance.Number, haveDigest appliance.Digest, got appliance.Number, gotDigest appliance.Digest) error {
	switch order := got.Compare(have); {
	case got.IsZero():
		return appliance.Errorf(appliance.Invalid, "judge document: it has no number")
	case order < 0:
		return appliance.Errorf(appliance.Conflict, "judge document: number %s is older than %s", got, have).
			WithReason(Superseded).WithHint("only a higher number is taken")
	case order == 0 && gotDigest != haveDigest:
		return appliance.Errorf(appliance.Denied, "judge document: number %s was signed twice, as %s and as %s", got, haveDigest.Short(), gotDigest.Short()).
			WithReason(Alarm).WithHint("two controllers sign for this mesh, or its records were restored without a new epoch")
	case ahead(have.Epoch, got.Epoch) > Leap || ahead(have.Counter, got.Counter) > Leap:
		return appliance.Errorf(appliance.Denied, "judge document: number %s is more than %d ahead of %s", got, uint64(Leap), have).
			WithReason(Absurd).WithHint("taken, it would leave no number for anything after it")
	}
	return nil
}

func ahead(have, got uint64) uint64 {
	if got < have {
		return 0
	}
	return got - have
}
