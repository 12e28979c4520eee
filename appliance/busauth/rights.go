package busauth

import (
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Kind is what a user of the bus is.
type Kind string

const (
	KindController        Kind = "controller"
	KindNode              Kind = "node"
	KindToken             Kind = "token"
	KindOperator          Kind = "operator"
	KindDeparted          Kind = "departed"           // a machine that was removed, until it has heard so
	KindControllerModules Kind = "controller-modules" // the controller's user in MODULES
)

// Kinds are all of them.
var Kinds = []Kind{KindController, KindNode, KindToken, KindOperator, KindDeparted, KindControllerModules}

// The two accounts (BUS-2).
const (
	AccountControl = "CONTROL"
	AccountModules = "MODULES"
)

// Account is where the kind's users are.
func (k Kind) Account() string {
	if k == KindControllerModules {
		return AccountModules
	}
	return AccountControl
}

// User is the name whose inbox prefix the user owns.
func (k Kind) User(id string) string {
	switch k {
	case KindNode, KindDeparted:
		return wire.NodeUser(appliance.NodeID(id))
	case KindToken:
		return wire.TokenUser(appliance.TokenID(id))
	case KindOperator:
		return wire.OperatorUser(appliance.OperatorID(id))
	}
	return wire.ControllerUser
}

// token is what stands for the user in a subject.
func (k Kind) token(id string) string {
	if k == KindToken {
		return wire.TokenUser(appliance.TokenID(id))
	}
	return id
}

// Verb is what a user does with a subject.
type Verb string

const (
	Publish   Verb = "publish"
	Subscribe Verb = "subscribe"
)

// Right lets every user of a kind do one thing. "<own>" in Subject is the user's own id as it stands in subjects, "<user>" its name.
type Right struct {
	Kind    Kind
	Verb    Verb
	Subject string
}

// own narrows a subject of the mesh to the user's own: its first star is the sender or the addressee.
func own(subject string) string { return strings.Replace(subject, "*", "<own>", 1) }

const inbox = "_INBOX.<user>.>"

// Rights is everything anybody may do. What is not here is denied by the server, which knows no default and no deny rule.
var Rights = slices.Concat(
	[]Right{
		{KindNode, Publish, own(wire.SubjectReports)},
		{KindNode, Publish, own(wire.SubjectRekeys)},
		{KindNode, Publish, own(wire.SubjectAlives)},
		{KindNode, Subscribe, own(wire.SubjectDeclarations)},
		{KindNode, Subscribe, own(wire.SubjectNotices)},
		{KindNode, Publish, own(wire.SubjectOutputs)},
		{KindNode, Subscribe, own(wire.SubjectAsks)},
		{KindNode, Subscribe, wire.SubjectMembership},
		{KindNode, Subscribe, inbox},

		{KindToken, Publish, own(wire.SubjectEnrolments)},
		{KindToken, Subscribe, inbox},

		{KindOperator, Publish, own(wire.SubjectRequests)},
		{KindOperator, Subscribe, inbox},

		// It says that it is there and is told that it was removed; no inbox: its successor has the same.
		{KindDeparted, Publish, own(wire.SubjectAlives)},
		{KindDeparted, Subscribe, own(wire.SubjectNotices)},

		{KindController, Publish, wire.SubjectDeclarations},
		{KindController, Publish, wire.SubjectNotices},
		{KindController, Publish, wire.SubjectAsks},
		{KindController, Publish, wire.SubjectMembership},
		{KindController, Publish, wire.SubjectDeadletter},
		{KindController, Publish, wire.SubjectWindows},
		{KindController, Publish, wire.SubjectProbe},
		// It alone answers, and beneath the asker's own prefix only, which the link holds it to (BUS-9). A prefix cannot be
		// narrowed to a kind of user: a wildcard is a whole token.
		{KindController, Publish, "_INBOX.>"},
		{KindController, Subscribe, inbox},

		// Modules have no users yet; the controller is in their account so that nothing is left to a default.
		{KindControllerModules, Publish, inbox},
		{KindControllerModules, Subscribe, inbox},
	},
	controllerStreams(),
	controllerHears(),
)

// controllerStreams are the server's own subjects that raising, reading and emptying the streams needs, each by its full name.
// Nobody else has any.
func controllerStreams() (rights []Right) {
	grant := func(stream string, calls ...string) {
		for _, call := range calls {
			rights = append(rights, Right{KindController, Publish, "$JS.API." + call + "." + stream})
		}
	}
	grant(wire.StreamControl, "STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.PURGE", "STREAM.MSG.GET", "STREAM.MSG.DELETE", "CONSUMER.LIST")
	// A consumer that is in no list has a name nobody knows beforehand.
	grant(wire.StreamControl+".*", "CONSUMER.DELETE")
	grant(wire.StreamDeadletter, "STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.MSG.GET", "STREAM.MSG.DELETE")
	grant(wire.StreamWindows, "STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.MSG.GET", "STREAM.MSG.DELETE")
	grant(wire.StreamProbe, "STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.MSG.DELETE")
	return rights
}

// controllerHears is built from the one list of what the controller hears (BUS-11).
func controllerHears() (rights []Right) {
	for _, f := range wire.FollowedSubjects {
		if f.Consumer == "" {
			rights = append(rights, Right{KindController, Subscribe, f.Subject})
			continue
		}
		consumer := wire.StreamControl + "." + f.Consumer
		rights = append(rights,
			Right{KindController, Publish, "$JS.API.CONSUMER.CREATE." + consumer + "." + f.Subject},
			Right{KindController, Publish, "$JS.API.CONSUMER.INFO." + consumer},
			Right{KindController, Publish, "$JS.API.CONSUMER.MSG.NEXT." + consumer},
			Right{KindController, Publish, "$JS.ACK." + consumer + ".>"},
		)
	}
	return rights
}

// Subjects are the allow list of one user with a verb, sorted.
func (k Kind) Subjects(verb Verb, id string) []string {
	fill := strings.NewReplacer("<own>", k.token(id), "<user>", k.User(id))
	var subjects []string
	for _, r := range Rights {
		if r.Kind == k && r.Verb == verb {
			subjects = append(subjects, fill.Replace(r.Subject))
		}
	}
	slices.Sort(subjects)
	return subjects
}
