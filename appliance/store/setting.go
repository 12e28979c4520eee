package store

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/resolve"
)

// SetSetting records a value that an operator chose for a module, everywhere or on one node (MOD-11). What its manifest does not name,
// and what cannot be resolved afterwards, is refused. The same value again changes nothing.
func (s *Store) SetSetting(ctx context.Context, by By, v resolve.Setting) error {
	return s.change(ctx, "set "+v.Name+" of module "+string(v.Module), by, func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		m, err := moduleFor(ctx, tx, v)
		if err != nil {
			return err
		}
		if _, err := m.Setting(v.Name); err != nil {
			return err
		}
		if err := checkValue(v); err != nil {
			return err
		}
		before, err := choice(ctx, tx, v)
		if err != nil || before != nil && *before == v.Value {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO setting (module, node, name, value, set_at) VALUES ($1, NULLIF($2, ''), $3, $4, $5)
			ON CONFLICT (module, COALESCE(node::text, ''), name) DO UPDATE SET value = excluded.value, set_at = excluded.set_at`, v.Module, v.Node, v.Name, v.Value, by.At)
		if err != nil {
			return err
		}
		if err := judge(ctx, tx); err != nil {
			return err
		}
		return audit(ctx, tx, by, "setting set", SettingSubject(v), brief(before), brief(&v.Value))
	})
}

// UnsetSetting takes back what SetSetting recorded, also for a setting that the manifest no longer names.
func (s *Store) UnsetSetting(ctx context.Context, by By, v resolve.Setting) error {
	return s.change(ctx, "unset "+v.Name+" of module "+string(v.Module), by, func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		m, err := moduleFor(ctx, tx, v)
		if err != nil {
			return err
		}
		before, err := choice(ctx, tx, v)
		if err != nil {
			return err
		}
		if before == nil {
			if _, err := m.Setting(v.Name); err != nil {
				return err
			}
			return appliance.Errorf(appliance.NotFound, "no value was set there for %s of module %s", v.Name, v.Module).
				WithHint("where each value comes from is listed").WithNext("mesh setting list " + string(v.Module))
		}
		if _, err := tx.Exec(ctx, `DELETE FROM setting WHERE module = $1 AND COALESCE(node, '') = $2 AND name = $3`, v.Module, v.Node, v.Name); err != nil {
			return err
		}
		if err := judge(ctx, tx); err != nil {
			return err
		}
		return audit(ctx, tx, by, "setting unset", SettingSubject(v), brief(before), nil)
	})
}

// SettingSubject names a setting in the audit.
func SettingSubject(v resolve.Setting) string {
	subject := string(v.Module) + "/" + v.Name
	if v.Node != "" {
		subject += "@" + string(v.Node)
	}
	return subject
}

// moduleFor gives the module that a setting is for; an unknown module or node is refused.
func moduleFor(ctx context.Context, tx pgx.Tx, v resolve.Setting) (*manifest.Manifest, error) {
	var declared string
	var node bool
	err := tx.QueryRow(ctx, `SELECT COALESCE((SELECT manifest::text FROM module WHERE name = $1), ''), $2 = '' OR EXISTS (SELECT FROM node WHERE id = $2)`,
		v.Module, v.Node).Scan(&declared, &node)
	switch {
	case err != nil:
		return nil, err
	case declared == "":
		return nil, noModule(v.Module)
	case !node:
		return nil, appliance.Errorf(appliance.NotFound, "there is no node %s", appliance.Quote(string(v.Node))).WithNext("mesh node list")
	}
	return recordedManifest(declared)
}

// choice is the value recorded now; nil where there is none.
func choice(ctx context.Context, tx pgx.Tx, v resolve.Setting) (value *string, err error) {
	err = tx.QueryRow(ctx, `SELECT value FROM setting WHERE module = $1 AND COALESCE(node, '') = $2 AND name = $3`, v.Module, v.Node, v.Name).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return value, err
}

func checkValue(v resolve.Setting) error {
	switch {
	case len(v.Value) > resolve.MaxSetting:
		return appliance.Errorf(appliance.Invalid, "set %s of module %s: %d bytes, at most %d", v.Name, v.Module, len(v.Value), resolve.MaxSetting).
			WithHint("a setting is a value in a file or a command; longer things are files of the module, or artifacts")
	case !utf8.ValidString(v.Value) || strings.Contains(v.Value, "\x00"):
		return appliance.Errorf(appliance.Invalid, "set %s of module %s: the value is not text", v.Name, v.Module).WithHint("UTF-8 without NUL; base64 holds anything else")
	}
	return nil
}

// maxBrief bounds what the audit keeps of a value, in bytes.
const maxBrief = 256

// brief is a value as the audit shows it; nil for none.
func brief(value *string) any {
	switch {
	case value == nil:
		return nil
	case len(*value) > maxBrief:
		return map[string]any{"digest": appliance.DigestOf([]byte(*value)), "bytes": len(*value)}
	}
	return map[string]any{"value": *value}
}
