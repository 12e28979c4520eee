package manifest

import (
	"bytes"
	_ "embed"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/novox/mesh/appliance"
)

// SchemaID is the name under which the schema is published.
const SchemaID = "mesh:module.schema.json"

//go:embed module.schema.json
var schemaFile []byte

// Schema is the published JSON Schema of module.json.
func Schema() []byte { return slices.Clone(schemaFile) }

type schema struct {
	compiled *jsonschema.Schema
	document map[string]any
}

var theSchema = sync.OnceValue(func() schema {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemaFile))
	if err != nil {
		panic(err) // the file is part of the binary
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(SchemaID, document); err != nil {
		panic(err)
	}
	return schema{c.MustCompile(SchemaID), document.(map[string]any)}
})

// check notes everything about v that the schema does not allow.
func (s schema) check(v any, errs *Errors) {
	if err := s.compiled.Validate(v); err != nil {
		s.translate(err.(*jsonschema.ValidationError), v, errs)
	}
}

// translate says in our words what jsonschema found: of a tree of errors the leaves.
func (s schema) translate(e *jsonschema.ValidationError, v any, errs *Errors) {
	at := func(more ...string) string {
		return joinAll(v, append(slices.Clone(e.InstanceLocation), more...))
	}
	node := s.node(e.SchemaURL)
	switch k := e.ErrorKind.(type) {
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			if grammar := s.grammar(node); grammar != "" {
				errs.add(at(name), grammar, "is no name that may stand here")
				continue
			}
			properties, _ := node["properties"].(map[string]any)
			errs.add(at(name), suggest(name, keysOf(properties)), "unknown field")
		}
	case *kind.Required:
		for _, name := range k.Missing {
			errs.add(at(name), "", "is missing")
		}
	case *kind.Type:
		errs.add(at(), s.describe(node), fmt.Sprintf("is %s, must be %s", article(k.Got), article(strings.Join(k.Want, " or "))))
	case *kind.Enum:
		errs.add(at(), oneOf(k.Got, k.Want), show(k.Got)+" is not known here")
	case *kind.Const:
		errs.add(at(), oneOf(k.Got, []any{k.Want}), show(k.Got)+" is not known here")
	case *kind.Pattern:
		errs.add(at(), s.describe(node), appliance.Quote(k.Got)+" does not fit")
	case *kind.OneOf:
		var names []string
		for _, alternative := range node["oneOf"].([]any) {
			for _, name := range alternative.(map[string]any)["required"].([]any) {
				names = append(names, name.(string))
			}
		}
		errs.add(at(), "", "needs exactly one of "+strings.Join(names, ", "))
	case *kind.UniqueItems:
		errs.add(at(fmt.Sprint(k.Duplicates[1])), "", fmt.Sprintf("is the same as number %d", k.Duplicates[0]))
	case *kind.MaxLength:
		errs.add(at(), fmt.Sprintf("at most %d", k.Want), fmt.Sprintf("is %d characters long", k.Got))
	case *kind.MinLength:
		errs.add(at(), fmt.Sprintf("at least %d", k.Want), fmt.Sprintf("is %d characters long", k.Got))
	case *kind.MaxItems:
		errs.tooMany = true
		errs.add(at(), fmt.Sprintf("at most %d", k.Want), fmt.Sprintf("has %d entries", k.Got))
	case *kind.MinItems:
		errs.add(at(), fmt.Sprintf("at least %d", k.Want), fmt.Sprintf("has %d entries", k.Got))
	case *kind.MaxProperties:
		errs.tooMany = true
		errs.add(at(), fmt.Sprintf("at most %d", k.Want), fmt.Sprintf("has %d fields", k.Got))
	case *kind.MinProperties:
		errs.add(at(), fmt.Sprintf("at least %d", k.Want), fmt.Sprintf("has %d fields", k.Got))
	case *kind.Maximum:
		errs.add(at(), "at most "+k.Want.RatString(), "is too large")
	case *kind.Minimum:
		errs.add(at(), "at least "+k.Want.RatString(), "is too small")
	default:
		if len(e.Causes) == 0 {
			errs.add(at(), "", e.ErrorKind.LocalizedString(message.NewPrinter(language.English)))
		}
		for _, cause := range e.Causes {
			s.translate(cause, v, errs)
		}
	}
}

// node is the part of the schema that a location names.
func (s schema) node(location string) map[string]any {
	_, pointer, _ := strings.Cut(location, "#")
	if plain, err := url.PathUnescape(pointer); err == nil {
		pointer = plain
	}
	var at any = s.document
	for _, step := range strings.Split(strings.TrimPrefix(pointer, "/"), "/") {
		switch in := at.(type) {
		case map[string]any:
			if step != "" {
				at = in[strings.NewReplacer("~1", "/", "~0", "~").Replace(step)]
			}
		case []any:
			var i int
			if _, err := fmt.Sscan(step, &i); err != nil || i >= len(in) {
				return nil
			}
			at = in[i]
		}
	}
	node, _ := at.(map[string]any)
	return node
}

// describe is what the schema says about a node, or about what it refers to.
func (s schema) describe(node map[string]any) string {
	if d := text(node, "description"); d != "" || text(node, "$ref") == "" {
		return d
	}
	return s.describe(s.node(text(node, "$ref")))
}

// grammar describes the names that an object may have as fields, where any name of a grammar will do.
func (s schema) grammar(node map[string]any) string {
	patterns, _ := node["patternProperties"].(map[string]any)
	for _, d := range s.document["$defs"].(map[string]any) {
		definition := d.(map[string]any)
		if _, ok := patterns[text(definition, "pattern")]; ok {
			return text(definition, "description")
		}
	}
	return ""
}

func text(node map[string]any, field string) string {
	s, _ := node[field].(string)
	return s
}

func oneOf(got any, want []any) string {
	var names []string
	for _, w := range want {
		names = append(names, fmt.Sprint(w))
	}
	return suggest(fmt.Sprint(got), names)
}

func show(v any) string {
	switch v := v.(type) {
	case string:
		return appliance.Quote(v)
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	}
	return fmt.Sprint(v)
}

// article names a JSON type as a person would.
func article(jsonType string) string {
	switch jsonType {
	case "object", "integer":
		return "an " + jsonType
	case "array":
		return "a list"
	case "null":
		return "null"
	}
	return "a " + jsonType
}
