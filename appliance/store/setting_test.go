package store_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
)

const titled = `{"module": "site", "settings": {"title": {"default": "Ours", "description": "Shown on the front page"}, "theme": {"description": "light or dark"}}}`

// MOD-11, SAFE-1: values are those of the node over those of the mesh over the manifest's; what the manifest does not name, or no setting
// can hold, is refused, and changes nothing.
func TestSettings(t *testing.T) {
	s, g := founded(t)
	second := enrolledNode(t, s, "n2").Node
	register(t, s, titled)
	set := func(node appliance.NodeID, name, value string) error {
		return s.SetSetting(t.Context(), by(), resolve.Setting{Module: "site", Node: node, Name: name, Value: value})
	}
	unset := func(node appliance.NodeID, name string) error {
		return s.UnsetSetting(t.Context(), by(), resolve.Setting{Module: "site", Node: node, Name: name})
	}
	good := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	values := func() map[string]string {
		t.Helper()
		plans, err := resolve.Resolve(intentOf(t, s))
		good(err)
		out := map[string]string{}
		for node, plan := range plans {
			for _, i := range plan.Instances {
				name := map[appliance.NodeID]string{g.Hub.ID: "hub", second: "n2"}[node]
				out[name] = i.Settings["title"] + "/" + i.Settings["theme"]
			}
		}
		return out
	}
	wantRefusal(t, s.Assign(t.Context(), by(), resolve.Assignment{Module: "site", Node: second}), appliance.Conflict, resolve.Unset) // theme has no value
	good(set("", "theme", "dark"))
	assign(t, s, "site", "", g.Hub.ID)
	assign(t, s, "site", "", second)
	good(set("", "title", "Theirs"))
	good(set(second, "title", "Mine"))
	if d := cmp.Diff(map[string]string{"hub": "Theirs/dark", "n2": "Mine/dark"}, values()); d != "" {
		t.Error(d)
	}

	before := everythingRecorded(t, s)
	wantRefusal(t, set("", "titel", "x"), appliance.NotFound, "")
	if err := set("", "titel", "x"); !strings.Contains(appliance.AsError(err).Hint, `"title"`) {
		t.Errorf("nothing nearer is named: %v", appliance.AsError(err).Hint)
	}
	wantRefusal(t, unset("", "none"), appliance.NotFound, "")
	wantRefusal(t, unset(g.Hub.ID, "title"), appliance.NotFound, "")      // the mesh's, not the hub's
	wantRefusal(t, unset("", "theme"), appliance.Conflict, resolve.Unset) // two instances live on it
	wantRefusal(t, set(appliance.NewNodeID(), "title", "x"), appliance.NotFound, "")
	wantRefusal(t, set("", "title", strings.Repeat("x", resolve.MaxSetting+1)), appliance.Invalid, "")
	wantRefusal(t, set("", "title", "a\x00b"), appliance.Invalid, "")
	wantRefusal(t, set("", "title", "a\xffb"), appliance.Invalid, "")
	wantRefusal(t, s.SetSetting(t.Context(), by(), resolve.Setting{Module: "none", Name: "title"}), appliance.NotFound, "")
	m, err := manifest.Parse([]byte(strings.Replace(titled, `"theme"`, `"motto": {"description": "below the title"}, "theme"`, 1)))
	good(err)
	refused := s.RegisterModule(t.Context(), by(), m) // no value can be given before the module has the setting
	wantRefusal(t, refused, appliance.Conflict, resolve.Unset)
	if e := appliance.AsError(refused); !strings.Contains(e.Hint, "default") || e.Next != "" {
		t.Errorf("no way out of %v: %q, next %q", refused, e.Hint, e.Next)
	}
	good(set("", "title", "Theirs")) // no change
	if d := cmp.Diff(before, everythingRecorded(t, s), addresses, prefixes); d != "" {
		t.Errorf("a refusal, or nothing new, changed the records: %s", d)
	}

	good(unset(second, "title"))
	good(set("", "title", strings.Repeat("x", resolve.MaxSetting)))
	good(unset("", "title"))
	if d := cmp.Diff(map[string]string{"hub": "Ours/dark", "n2": "Ours/dark"}, values()); d != "" {
		t.Error(d)
	}
	rows := changesOf(t, s, "test") // a long value is named by its digest
	var shown struct{ Bytes int }
	last := rows[len(rows)-1]
	if err := json.Unmarshal(last.Before, &shown); err != nil || shown.Bytes != resolve.MaxSetting || last.Subject != store.SettingSubject(resolve.Setting{Module: "site", Name: "title"}) {
		t.Errorf("audited %s %s: %v", last.Subject, last.Before, err)
	}

	register(t, s, strings.Replace(titled, `, "theme": {"description": "light or dark"}`, "", 1)) // what a later manifest drops is passed over, and can be unset
	if d := cmp.Diff(map[string]string{"hub": "Ours/", "n2": "Ours/"}, values()); d != "" {
		t.Error(d)
	}
	good(unset("", "theme"))
	if left := intentOf(t, s).Settings; len(left) > 0 {
		t.Errorf("left %+v", left)
	}
}
