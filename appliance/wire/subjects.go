package wire

import (
	"strings"

	"github.com/novox/mesh/appliance"
)

// Subjects of the CONTROL account. A star stands for one id.
const (
	SubjectReports      = "mesh.control.*.report"
	SubjectRekeys       = "mesh.control.*.rekey"
	SubjectEnrolments   = "mesh.control.*.enrol"
	SubjectAlives       = "mesh.alive.*"
	SubjectRequests     = "mesh.api.*.*.*"
	SubjectMembership   = "mesh.membership"
	SubjectDeclarations = "mesh.node.*.declaration"
	SubjectNotices      = "mesh.node.*.notice"
	SubjectAsks         = "mesh.node.*.ask"
	SubjectOutputs      = "mesh.session.*"
	StreamControl       = "CONTROL"
	StreamDeadletter    = "DEADLETTER"
	SubjectDeadletter   = "mesh.deadletter"
	StreamWindows       = "WINDOWS" // the last account of what keeps failing, one for each consumer (BUS-12)
	SubjectWindows      = "mesh.window.*"
	StreamProbe         = "PROBE" // written to see that it can be (GEN-9)
	SubjectProbe        = "mesh.probe"
)

// Followed is a subject the controller hears. The decoder, the controller's grants and the genesis template are built from this list (BUS-11).
type Followed struct {
	Subject  string
	Consumer string // durable on stream CONTROL; empty: heard from core
	Kinds    []Kind // what may come on it
}

// FollowedSubjects is the one list of what the controller hears.
var FollowedSubjects = []Followed{
	{SubjectReports, "reports", []Kind{KindReport}},
	{SubjectRekeys, "rekeys", []Kind{KindRekey}},
	{SubjectEnrolments, "enrolments", []Kind{KindHello, KindClaim}},
	{SubjectAlives, "", []Kind{KindAlive}},
	{SubjectOutputs, "", []Kind{KindOutput}},
	{SubjectRequests, "", []Kind{KindRequest}},
}

func ReportSubject(n appliance.NodeID) string      { return "mesh.control." + string(n) + ".report" }
func RekeySubject(n appliance.NodeID) string       { return "mesh.control." + string(n) + ".rekey" }
func AliveSubject(n appliance.NodeID) string       { return "mesh.alive." + string(n) }
func DeclarationSubject(n appliance.NodeID) string { return "mesh.node." + string(n) + ".declaration" }
func NoticeSubject(n appliance.NodeID) string      { return "mesh.node." + string(n) + ".notice" }
func EnrolSubject(t appliance.TokenID) string      { return "mesh.control.token-" + string(t) + ".enrol" }
func AskSubject(n appliance.NodeID) string         { return "mesh.node." + string(n) + ".ask" }
func OutputSubject(n appliance.NodeID) string      { return "mesh.session." + string(n) }
func RequestSubject(o appliance.OperatorID, verb string) string {
	return "mesh.api." + string(o) + "." + verb // verb is "<noun>.<verb>"
}

// Bus user names; each owns the inbox prefix _INBOX.<user>.
func NodeUser(n appliance.NodeID) string         { return "node-" + string(n) }
func TokenUser(t appliance.TokenID) string       { return "token-" + string(t) }
func OperatorUser(o appliance.OperatorID) string { return "operator-" + string(o) }

const ControllerUser = "controller"

// InboxPrefix is the only place where a user may be answered.
func InboxPrefix(user string) string { return "_INBOX." + user }

// OwnsInbox says whether reply lies beneath user's own inbox prefix, with nothing in it that a subscription would read as a pattern.
func OwnsInbox(user, reply string) bool {
	rest, ok := strings.CutPrefix(reply, InboxPrefix(user)+".")
	return ok && rest != "" && len(rest) <= 64 && !strings.ContainsAny(rest, "*> \t\r\n") && !strings.HasPrefix(rest, ".") && !strings.HasSuffix(rest, ".") && !strings.Contains(rest, "..")
}

// Token gives the nth dot-separated part of a subject, empty when there is none.
func Token(subject string, n int) string {
	for token := range strings.SplitSeq(subject, ".") {
		if n == 0 {
			return token
		}
		n--
	}
	return ""
}
