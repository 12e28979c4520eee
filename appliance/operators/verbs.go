// Package operators is what an operator may ask of the controller: the verbs with their arguments and answers, the one authorization
// table, and the credential an operator holds. What a verb does is the controller's; how it is shown is the command's.
package operators

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/novox/mesh/appliance"
)

// Role is what an operator is.
type Role string

const (
	Admin  Role = "admin"
	Viewer Role = "viewer"
)

// Verb is "<noun>.<verb>", the end of the request's subject.
type Verb string

const (
	TokenCreate    Verb = "token.create"
	TokenList      Verb = "token.list"
	TokenRevoke    Verb = "token.revoke"
	ModuleRegister Verb = "module.register"
	ModuleList     Verb = "module.list"
	ModuleShow     Verb = "module.show"
	ModuleAssign   Verb = "module.assign"
	ModuleUnassign Verb = "module.unassign"
	ModuleRemove   Verb = "module.remove"
	ModuleStop     Verb = "module.stop"
	ModuleStart    Verb = "module.start"
	ModulePurge    Verb = "module.purge"
	ModuleRestart  Verb = "module.restart"
	SettingSet     Verb = "setting.set"
	SettingUnset   Verb = "setting.unset"
	SettingList    Verb = "setting.list"
	PlanShow       Verb = "plan.show"
	PlanPush       Verb = "plan.push"
	PlanList       Verb = "plan.list"
	PlanRollback   Verb = "plan.rollback"
	StatusShow     Verb = "status.show"
	OverlayShow    Verb = "overlay.show"
	NodeCheck      Verb = "node.check"
	NodeHold       Verb = "node.hold"
	NodeDrain      Verb = "node.drain"
	NodeResume     Verb = "node.resume"
	NodeConverge   Verb = "node.converge"
	SessionLogs    Verb = "session.logs"
	SessionExec    Verb = "session.exec"
	SessionSend    Verb = "session.send"
	NodeRemove     Verb = "node.remove"
	NodeReplace    Verb = "node.replace"
	AuditList      Verb = "audit.list"
	ArtifactGrant  Verb = "artifact.grant"
	ArtifactList   Verb = "artifact.list"
	ArtifactShow   Verb = "artifact.show"
)

// table is the authorization table: every verb of the bus, and the roles that may use it. A verb without a row is refused.
var table = map[Verb][]Role{
	TokenCreate:    {Admin},
	TokenList:      {Admin},
	TokenRevoke:    {Admin},
	ModuleRegister: {Admin},
	ModuleList:     {Admin, Viewer},
	ModuleShow:     {Admin, Viewer},
	ModuleAssign:   {Admin},
	ModuleUnassign: {Admin},
	ModuleRemove:   {Admin},
	ModuleStop:     {Admin},
	ModuleStart:    {Admin},
	ModulePurge:    {Admin},
	ModuleRestart:  {Admin},
	SettingSet:     {Admin},
	SettingUnset:   {Admin},
	SettingList:    {Admin, Viewer},
	PlanShow:       {Admin, Viewer},
	PlanPush:       {Admin},
	PlanList:       {Admin, Viewer},
	PlanRollback:   {Admin},
	StatusShow:     {Admin, Viewer},
	OverlayShow:    {Admin, Viewer},
	NodeCheck:      {Admin},
	NodeHold:       {Admin},
	NodeDrain:      {Admin},
	NodeResume:     {Admin},
	NodeConverge:   {Admin},
	SessionLogs:    {Admin, Viewer},
	SessionExec:    {Admin},
	SessionSend:    {Admin, Viewer}, // to a session of one's own
	NodeRemove:     {Admin},
	NodeReplace:    {Admin},
	AuditList:      {Admin},
	ArtifactGrant:  {Admin},
	ArtifactList:   {Admin, Viewer},
	ArtifactShow:   {Admin, Viewer},
}

// Verbs lists the table's verbs, sorted.
func Verbs() []Verb { return slices.Sorted(maps.Keys(table)) }

// Authorize refuses what the role may not ask.
func Authorize(role Role, verb Verb) error {
	roles, ok := table[verb]
	switch {
	case !ok:
		return appliance.Errorf(appliance.NotFound, "there is no request %s", appliance.Quote(string(verb))).WithHint("the hub may run an older version")
	case !slices.Contains(roles, role):
		return appliance.Errorf(appliance.Denied, "a %s may not ask %s", role, verb).WithHint("ask an admin of the mesh")
	}
	return nil
}

// Request is the body of a request; the envelope around it is signed by the operator. Verb is the subject's.
type Request struct {
	Verb      Verb            `json:"verb"`
	Arguments json.RawMessage `json:"arguments"`
}

// Answer is the body of an answer; exactly one of the two is set. The envelope repeats the request's nonce.
type Answer struct {
	Result json.RawMessage  `json:"result,omitempty"`
	Error  *appliance.Error `json:"error,omitempty"`
}
