package busauth

import (
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Subjects are all families of the CONTROL account; a test holds them to what wire knows.
var Subjects = []string{
	wire.SubjectReports, wire.SubjectRekeys, wire.SubjectEnrolments, wire.SubjectAlives, wire.SubjectRequests, wire.SubjectMembership,
	wire.SubjectDeclarations, wire.SubjectNotices, wire.SubjectAsks, wire.SubjectOutputs, wire.SubjectDeadletter, wire.SubjectWindows, wire.SubjectProbe,
}

// Streams are all streams.
var Streams = []string{wire.StreamControl, wire.StreamDeadletter, wire.StreamWindows, wire.StreamProbe}

// calls are what the server can be asked about a stream and a consumer.
var calls = struct{ stream, consumer []string }{
	[]string{"STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.GET", "STREAM.MSG.DELETE",
		"STREAM.SNAPSHOT", "STREAM.RESTORE", "DIRECT.GET", "CONSUMER.LIST", "CONSUMER.NAMES"},
	[]string{"CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.INFO", "CONSUMER.MSG.NEXT", "CONSUMER.DELETE", "CONSUMER.PAUSE",
		"CONSUMER.RESET", "CONSUMER.UNPIN"},
}

// Others are users that are not the one asked about.
type Others struct {
	Node     appliance.NodeID
	Token    appliance.TokenID
	Operator appliance.OperatorID
}

// Cell is one question to the broker, and its answer. Row is the subject as a person reads it, the same for every user.
type Cell struct {
	Row     string
	Subject string
	Verb    Verb
	Allowed bool
}

// Matrix asks everything there is to ask about a user of a kind with an id: each subject as its own, as each other's and as a
// pattern, with each verb.
func Matrix(k Kind, id string, others Others) []Cell {
	var cells []Cell
	ask := func(row, subject string) {
		for _, verb := range []Verb{Publish, Subscribe} {
			cells = append(cells, Cell{row, subject, verb, covered(k.Subjects(verb, id), subject)})
		}
	}
	whose := []struct{ row, token, user string }{
		{"<own>", k.token(id), k.User(id)},
		{"<other-node>", KindNode.token(string(others.Node)), KindNode.User(string(others.Node))},
		{"<other-token>", KindToken.token(string(others.Token)), KindToken.User(string(others.Token))},
		{"<other-operator>", KindOperator.token(string(others.Operator)), KindOperator.User(string(others.Operator))},
	}
	for _, subject := range Subjects {
		if first, rest, starred := strings.Cut(subject, "*"); starred {
			rest = strings.ReplaceAll(rest, "*", "word")
			for _, w := range whose {
				if w.token == "" {
					continue // the controller has no id
				}
				ask(first+w.row+rest, first+w.token+rest)
			}
			ask(subject+".more", strings.ReplaceAll(subject, "*", "word")+".more")
		}
		ask(subject, subject)
	}
	for _, w := range append(whose, struct{ row, token, user string }{"controller", "", wire.ControllerUser}) {
		ask("_INBOX."+w.row+".x", "_INBOX."+w.user+".x")
		ask("_INBOX."+w.row+".>", "_INBOX."+w.user+".>")
	}
	for _, stream := range Streams {
		for _, call := range calls.stream {
			ask("$JS.API."+call+"."+stream, "$JS.API."+call+"."+stream)
		}
		for _, f := range append(slices.Clone(wire.FollowedSubjects), wire.Followed{Consumer: "strange", Subject: "mesh.control.>"}) {
			if f.Consumer == "" {
				continue
			}
			consumer := stream + "." + f.Consumer
			for _, call := range calls.consumer {
				ask("$JS.API."+call+"."+consumer, "$JS.API."+call+"."+consumer)
			}
			ask("$JS.API.CONSUMER.CREATE."+consumer+"."+f.Subject, "$JS.API.CONSUMER.CREATE."+consumer+"."+f.Subject)
			ask("$JS.ACK."+consumer+".1.1.1.1.0", "$JS.ACK."+consumer+".1.1.1.1.0")
		}
	}
	for _, subject := range []string{
		">", "mesh.>", "mesh.control.>", "mesh.control.word.strange", "mesh.mod.word.word", "mesh.seat.word.word", "mesh.work.word",
		"mesh.tool.word.word.word", "mesh.catchup.word.ask", "_INBOX.>", "_R_.x", "$JS.>", "$JS.API.>", "$JS.API.INFO", "$JS.ACK.>",
		"$JS.EVENT.ADVISORY.>", "$KV.word.word", "$O.word.word", "$SYS.>", "$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO",
	} {
		ask(subject, subject)
	}
	return cells
}

// covered says whether one of the allowed patterns takes in all of subject, which may be a pattern itself.
func covered(allowed []string, subject string) bool {
	return slices.ContainsFunc(allowed, func(pattern string) bool {
		p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
		for i := range p {
			switch {
			case p[i] == ">":
				return len(s) > i
			case i >= len(s) || s[i] == ">" || p[i] != "*" && p[i] != s[i]:
				return false
			}
		}
		return len(p) == len(s)
	})
}
