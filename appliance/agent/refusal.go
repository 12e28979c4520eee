package agent

import (
	"cmp"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// refusal is a document that was not accepted, from whoever opened it to the loop.
type refusal struct {
	what wire.Kind
	err  error
}

// sayAgain is how long a kind of refusal stands before it is reported once more: who can send rubbish shall not make the node busy.
const sayAgain = time.Minute

// refuse says that a document was not accepted. Nothing changed; the next report carries the warning.
func (a *Agent) refuse(what wire.Kind, err error) {
	if appliance.IsReason(err, wire.Superseded) {
		a.cfg.Log.Info("refused", "what", what, "err", err)
		return
	}
	a.cfg.Log.Error("refused", "what", what, "err", err)
	code := string(what) + "-refused"
	if time.Since(a.warned[code]) < sayAgain {
		return
	}
	a.accept(what)
	a.warned[code] = time.Now()
	remedy := "if nobody tampered with the bus, push once more"
	switch {
	case errors.Is(err, syscall.ENOSPC):
		remedy = "free space on that disk; it is sent again by itself"
	case what == wire.KindNotice:
		remedy = cmp.Or(appliance.AsError(err).Hint, "if nobody tampered with the bus, ask once more: mesh check")
	case what == kindPurge:
		remedy = cmp.Or(appliance.AsError(err).Hint, "look at the folder on that machine, then purge once more")
	}
	a.warn(code, wire.Warning{Code: code, Severity: "error", Text: err.Error(), Remedy: remedy})
	a.report(nil)
}

// accept ends the warning about refused documents of the kind; it says whether there was one.
func (a *Agent) accept(what wire.Kind) (warned bool) {
	code := string(what) + "-refused"
	delete(a.warned, code)
	return a.warn(code)
}

// warn puts warnings in the place of those with the code; it says whether there were any.
func (a *Agent) warn(code string, now ...wire.Warning) (warned bool) {
	kept := slices.DeleteFunc(slices.Clone(a.warnings), func(w wire.Warning) bool { return w.Code == code })
	warned = len(kept) < len(a.warnings)
	a.warnings = append(kept, now...)
	return warned
}
