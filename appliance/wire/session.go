package wire

import (
	"regexp"
	"time"

	"github.com/novox/mesh/appliance"
)

// A session is an operator attached to an instance: its logs, or a program run where it runs. Frames go from the operator through the
// controller to the node (Ask) and back (Output), each way numbered without a gap from 1. The node sends no more output than it was
// given credit for, so that who reads slowly makes the program wait; the asker sends no more input than was taken.

// Bounds of a session.
const (
	MaxFrame     = 32 << 10 // bytes of input or output in one frame
	MaxInput     = 16       // frames of input on their way
	MaxCredit    = 64       // frames of output on their way
	SessionBeat  = 10 * time.Second
	SessionQuiet = 35 * time.Second // without a word, the other end is taken to be gone
)

// Ask is one frame of a session to the node. The first has Open.
type Ask struct {
	Version  int           `json:"version"`
	Session  string        `json:"session"`
	Sequence uint64        `json:"sequence"`
	Open     *Opening      `json:"open,omitempty"`
	Input    []byte        `json:"input,omitempty"`
	End      bool          `json:"end,omitempty"`    // of the input
	Size     *TerminalSize `json:"size,omitempty"`   // it changed
	Credit   int           `json:"credit,omitempty"` // so many more frames of output may come
	Close    bool          `json:"close,omitempty"`
}

// Opening says what the session is; exactly one of Logs and Command.
type Opening struct {
	Run      string                 `json:"run"` // the node's present run: an open played again to a later one is refused
	Instance appliance.InstanceName `json:"instance"`
	Part     string                 `json:"part,omitempty"` // the process or container; empty: for logs all, for a command the first
	Logs     *Logs                  `json:"logs,omitempty"`
	Command  []string               `json:"command,omitempty"` // run where and as the instance runs
	Input    bool                   `json:"input,omitempty"`   // the command has an input
	Terminal *TerminalSize          `json:"terminal,omitempty"`
	Term     string                 `json:"term,omitempty"` // TERM of a terminal
}

// Logs asks for lines that were written, and with Follow for those that will be.
type Logs struct {
	Lines  int  `json:"lines"`
	Follow bool `json:"follow,omitempty"`
}

// TerminalSize is in characters.
type TerminalSize struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Output is one frame of a session from the node. One without data says only that the node is there, or what it took.
type Output struct {
	Version  int    `json:"version"`
	Session  string `json:"session"`
	Sequence uint64 `json:"sequence"`
	Part     string `json:"part,omitempty"`   // of logs: who wrote the lines
	Stderr   bool   `json:"stderr,omitempty"` // else standard output, or a terminal's
	Data     []byte `json:"data,omitempty"`   // of logs: whole lines
	Taken    uint64 `json:"taken,omitempty"`  // frames of input that the program has, all told
	End      *End   `json:"end,omitempty"`    // the last frame
}

// End is how a session ended: with the command's code, or with an error of the node's.
type End struct {
	Code  int              `json:"code"`
	Error *appliance.Error `json:"error,omitempty"`
}

var (
	sessionGrammar = regexp.MustCompile(`^[A-Z2-7]{26}$`)            // crypto/rand's Text
	partGrammar    = regexp.MustCompile(`^([a-z][a-z0-9-]{0,39})?$`) // of manifests, which know no reserved words here; it is shown as it is
	termGrammar    = regexp.MustCompile(`^[A-Za-z0-9._+-]{0,64}$`)
)

// ValidSession says whether s names a session.
func ValidSession(s string) bool { return sessionGrammar.MatchString(s) }

// ParseAsk reads and checks the body of an ask.
func ParseAsk(body []byte) (Ask, error) {
	var a Ask
	refuse := func(why string) (Ask, error) {
		return Ask{}, appliance.Errorf(appliance.Invalid, "read ask: %s", why)
	}
	if err := Decode(body, &a); err != nil {
		return refuse(err.Error())
	}
	switch {
	case a.Version != Version || !ValidSession(a.Session) || a.Sequence == 0:
		return refuse("it names no session of this version")
	case (a.Open != nil) != (a.Sequence == 1):
		return refuse("a session opens with its first frame")
	case len(a.Input) > MaxFrame || a.Credit < 0 || a.Credit > MaxCredit:
		return refuse("too much at once")
	}
	if a.Open != nil {
		if err := a.Open.Check(); err != nil {
			return Ask{}, err
		}
	}
	return a, nil
}

// Check refuses an open that asks for nothing, or for too much.
func (o Opening) Check() error {
	refuse := func(why string) error { return appliance.Errorf(appliance.Invalid, "open session: %s", why) }
	size := 0
	for _, c := range o.Command {
		size += len(c)
	}
	if _, err := appliance.ParseName[appliance.InstanceName]("instance", string(o.Instance)); err != nil {
		return err
	}
	switch {
	case !partGrammar.MatchString(o.Part):
		return refuse(appliance.Quote(o.Part) + " is no name of a process or container")
	case (o.Logs == nil) == (len(o.Command) == 0):
		return refuse("it is for logs or for a command")
	case o.Logs != nil && (o.Logs.Lines < 0 || o.Logs.Lines > 100_000):
		return refuse("0 to 100000 lines")
	case len(o.Command) > 100 || size > MaxFrame:
		return refuse("a command of at most 100 arguments and 32 KiB")
	case len(o.Command) > 0 && o.Command[0] == "":
		return refuse("the command has no name")
	case !termGrammar.MatchString(o.Term):
		return refuse("the kind of terminal is none")
	}
	return nil
}

// ParseOutput reads and checks the body of an output.
func ParseOutput(body []byte) (Output, error) {
	var o Output
	if err := Decode(body, &o); err != nil {
		return Output{}, appliance.Errorf(appliance.Invalid, "read output: %w", err)
	}
	if o.Version != Version || !ValidSession(o.Session) || o.Sequence == 0 || len(o.Data) > MaxFrame || !partGrammar.MatchString(o.Part) {
		return Output{}, appliance.Errorf(appliance.Invalid, "read output: it is of no session, or too long")
	}
	return o, nil
}
