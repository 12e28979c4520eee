package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/novox/mesh/appliance"
)

// outputs are the forms an answer can be given in.
var outputs = []string{"table", "json", "yaml"}

// checkOutput refuses an unknown --output.
func (g *global) checkOutput(c *cobra.Command) error {
	if !slices.Contains(outputs, g.output) {
		return usage(c, fmt.Sprintf("no output %s: table, json or yaml", appliance.Quote(g.output)))
	}
	return nil
}

// show prints v as JSON or YAML where asked for, else what table writes.
func (g *global) show(c *cobra.Command, v any, table func(w io.Writer)) error {
	switch g.output {
	case "json":
		e := json.NewEncoder(c.OutOrStdout())
		e.SetEscapeHTML(false)
		return e.Encode(v)
	case "yaml":
		data, err := yaml.Marshal(v) // by way of JSON: the same names
		if err == nil {
			_, err = c.OutOrStdout().Write(data)
		}
		return err
	}
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	table(t)
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(c.OutOrStdout(), plain(text.String()))
	return err
}

// plain makes what moves a terminal's cursor, colours or title, or turns the direction of writing, visible instead: much of what is
// printed are words of machines and of their modules' logs.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// row writes cells for a tabwriter; an empty cell becomes a dash, so that columns can be counted.
func row(w io.Writer, cells ...any) {
	out := make([]string, len(cells))
	for i, cell := range cells {
		if out[i] = fmt.Sprint(cell); out[i] == "" {
			out[i] = "-"
		}
	}
	fmt.Fprintln(w, strings.Join(out, "\t"))
}

// yes says true and false as a table does.
func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// ago says how long since t in the largest unit that fits; a dash for never.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	switch d := time.Since(t); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
