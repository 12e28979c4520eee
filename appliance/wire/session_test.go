package wire_test

import (
	"strings"
	"testing"

	"github.com/novox/mesh/appliance/wire"
)

const aSession = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// SAFE-2: what a session's frames may be.
func TestSessionFrames(t *testing.T) {
	logs := &wire.Opening{Run: "r", Instance: "web", Logs: &wire.Logs{Lines: 5}}
	for name, tc := range map[string]struct {
		ask  wire.Ask
		good bool
	}{
		"logs":               {wire.Ask{Version: 1, Session: aSession, Sequence: 1, Open: logs}, true},
		"input":              {wire.Ask{Version: 1, Session: aSession, Sequence: 2, Input: []byte("x")}, true},
		"command":            {wire.Ask{Version: 1, Session: aSession, Sequence: 1, Open: &wire.Opening{Instance: "web", Command: []string{"a"}}}, true},
		"a part called node": {wire.Ask{Version: 1, Session: aSession, Sequence: 1, Open: &wire.Opening{Instance: "web", Part: "node", Logs: logs.Logs}}, true},
		"no session":         {wire.Ask{Version: 1, Session: "x", Sequence: 2}, false},
		"no sequence":        {wire.Ask{Version: 1, Session: aSession}, false},
		"opens later":        {wire.Ask{Version: 1, Session: aSession, Sequence: 2, Open: logs}, false},
		"opens nothing":      {wire.Ask{Version: 1, Session: aSession, Sequence: 1}, false},
		"version":            {wire.Ask{Version: 2, Session: aSession, Sequence: 2}, false},
		"too long":           {wire.Ask{Version: 1, Session: aSession, Sequence: 2, Input: make([]byte, wire.MaxFrame+1)}, false},
		"credit":             {wire.Ask{Version: 1, Session: aSession, Sequence: 2, Credit: wire.MaxCredit + 1}, false},
		"both":               {wire.Ask{Version: 1, Session: aSession, Sequence: 1, Open: &wire.Opening{Instance: "web", Logs: logs.Logs, Command: []string{"a"}}}, false},
		"instance":           {wire.Ask{Version: 1, Session: aSession, Sequence: 1, Open: &wire.Opening{Instance: "../x", Logs: logs.Logs}}, false},
		"part":               {wire.Ask{Version: 1, Session: aSession, Sequence: 1, Open: &wire.Opening{Instance: "web", Part: "a/b", Logs: logs.Logs}}, false},
		"lines":              {wire.Ask{Version: 1, Session: aSession, Sequence: 1, Open: &wire.Opening{Instance: "web", Logs: &wire.Logs{Lines: -1}}}, false},
		"no command":         {wire.Ask{Version: 1, Session: aSession, Sequence: 1, Open: &wire.Opening{Instance: "web", Command: []string{""}}}, false},
		"long command":       {wire.Ask{Version: 1, Session: aSession, Sequence: 1, Open: &wire.Opening{Instance: "web", Command: []string{strings.Repeat("x", wire.MaxFrame+1)}}}, false},
		"terminal":           {wire.Ask{Version: 1, Session: aSession, Sequence: 1, Open: &wire.Opening{Instance: "web", Command: []string{"a"}, Term: "x\x1b]0;"}}, false},
	} {
		body, err := wire.Encode(tc.ask)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.ParseAsk(body); (err == nil) != tc.good {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, o := range map[string]wire.Output{
		"no session": {Version: 1, Sequence: 1}, "too long": {Version: 1, Session: aSession, Sequence: 1, Data: make([]byte, wire.MaxFrame+1)},
		"part": {Version: 1, Session: aSession, Sequence: 1, Part: strings.Repeat("x", 65)}, "part for a terminal": {Version: 1, Session: aSession, Sequence: 1, Part: "\x1b]0;"},
	} {
		body, err := wire.Encode(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.ParseOutput(body); err == nil {
			t.Errorf("output %s was taken", name)
		}
	}
}

func FuzzSession(f *testing.F) {
	f.Add([]byte(`{"version":1,"session":"` + aSession + `","sequence":1,"open":{"run":"r","instance":"web","logs":{"lines":1}}}`))
	f.Add([]byte(`{"version":1,"session":"` + aSession + `","sequence":1,"data":"eA==","end":{"code":1}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if a, err := wire.ParseAsk(body); err == nil && (!wire.ValidSession(a.Session) || len(a.Input) > wire.MaxFrame) {
			t.Errorf("%+v", a)
		}
		if o, err := wire.ParseOutput(body); err == nil && (!wire.ValidSession(o.Session) || len(o.Data) > wire.MaxFrame) {
			t.Errorf("%+v", o)
		}
	})
}
