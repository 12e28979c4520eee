package enrol

import (
	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/overlay"
	"github.com/novox/mesh/appliance/pki"
)

// Why an enrolment was refused. A joiner and a script read these; they are never renamed.
const (
	TokenDamaged    appliance.Reason = "token-damaged" // not the token as it was printed
	TokenExpired    appliance.Reason = "token-expired"
	TokenUsed       appliance.Reason = "token-used"
	TokenRevoked    appliance.Reason = "token-revoked"
	TokenForeign    appliance.Reason = "token-foreign" // of another mesh
	TokenUnknown    appliance.Reason = "token-unknown"
	Clock                            = pki.WrongClock
	Pin                              = pki.WrongPin // authority or signing key is not what the token pins
	NameTaken       appliance.Reason = "name-taken"
	NameInvalid     appliance.Reason = "name-invalid"
	KeyTaken        appliance.Reason = "key-taken"
	RangeOverlap                     = overlay.Clash
	Proof           appliance.Reason = "proof"
	ChallengeStale  appliance.Reason = "challenge-stale"
	Rate            appliance.Reason = "rate"
	Platform        appliance.Reason = "platform"
	AlreadyEnrolled appliance.Reason = "already-enrolled"
	MeshFull                         = overlay.Full
)

// way is the kind of a refusal and the way out of it.
type way struct {
	kind appliance.Kind
	hint string
	next string
}

var ways = map[appliance.Reason]way{
	TokenDamaged:    {appliance.Invalid, "copy the token whole, as one word, from where it was printed", ""},
	TokenExpired:    {appliance.Denied, "make another one on the hub", "mesh token create   (on the hub)"},
	TokenUsed:       {appliance.Denied, "a token enrols as many machines as it was made for; make another one on the hub", "mesh token create   (on the hub)"},
	TokenRevoked:    {appliance.Denied, "an operator revoked it; ask for another one", "mesh token create   (on the hub)"},
	TokenForeign:    {appliance.Denied, "a token enrols only into the mesh that made it", "mesh token create   (on the hub)"},
	TokenUnknown:    {appliance.Denied, "the mesh has no record of it; make another one on the hub", "mesh token create   (on the hub)"},
	Clock:           {appliance.Denied, "both clocks must agree within two minutes; set this machine's clock and join again", "timedatectl set-ntp true"},
	Pin:             {appliance.Denied, "somebody else answers at this address, or the token is older than the mesh; compare the address with the hub's and make another token", "mesh token create   (on the hub)"},
	NameTaken:       {appliance.Conflict, "names are unique in a mesh; join with another one", ""},
	NameInvalid:     {appliance.Invalid, "join with --name: lower-case letters, digits and inner dashes, beginning with a letter, at most 40 characters", ""},
	KeyTaken:        {appliance.Conflict, "no two nodes share a key; this machine was copied from another: remove its state folder and join again", ""},
	RangeOverlap:    {appliance.Conflict, "the overlay's range may overlap no route of a node; remove the route, or found the mesh with another --range", ""},
	Proof:           {appliance.Denied, "a claim proves every key it names; join again, and where it happens twice look for who changes the traffic", ""},
	ChallengeStale:  {appliance.NotReady, "a challenge is good for two minutes; join again", ""},
	Rate:            {appliance.NotReady, "too many tries with this token; wait a minute and join again", ""},
	Platform:        {appliance.Invalid, "a node is a Linux machine, amd64 or arm64", ""},
	AlreadyEnrolled: {appliance.Conflict, "the token was spent by this machine and it has been connected since; nothing is left to join", "mesh status"},
	MeshFull:        {appliance.Conflict, "every address of the overlay's range is given; remove nodes that are gone", "mesh node list"},
}

// Refuse makes the refusal for a reason, with its kind, its hint and its next command. Text says what happened, lower case.
func Refuse(reason appliance.Reason, text string) *appliance.Error {
	w := ways[reason]
	return (&appliance.Error{Kind: w.kind, Text: text, Hint: w.hint, Next: w.next}).WithReason(reason)
}

// RefuseName says that another node has the name.
func RefuseName(name appliance.NodeName) *appliance.Error {
	return Refuse(NameTaken, "enrol: a node named "+string(name)+" exists").
		WithHint("join as another with --name OTHER; to take that node's place, join with the token that the hub makes for it").
		WithNext("mesh node replace " + string(name) + "   (on the hub)")
}

// Passing says whether the same question may be answered otherwise in a moment.
func Passing(err error) bool {
	k := appliance.KindOf(err)
	return k == appliance.NotReady || k == appliance.Unavailable
}

// NeverEnrolled says whether a refusal proves that the claimant's keys are no node's: the mesh looks for an earlier enrolment by the
// same token and key first, and had it found one it would have answered.
func NeverEnrolled(err error) bool {
	switch appliance.AsError(err).Reason {
	case TokenExpired, TokenUsed, TokenRevoked, TokenUnknown, TokenForeign, NameTaken, NameInvalid, KeyTaken, MeshFull, RangeOverlap, Platform:
		return true
	}
	return false
}
