package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
)

// Problem is one thing that is wrong with a file.
type Problem struct {
	Path string // JSON path: resources[2].mode; "module.json" where it is the file as a whole
	Text string
	Hint string // the nearest right name, or the rule
}

func (p Problem) String() string {
	s := p.Path + ": " + p.Text
	if p.Hint != "" {
		s += " (" + p.Hint + ")"
	}
	return s
}

// Errors is everything that is wrong with a file, sorted by path. It unwraps to an appliance.Error of kind Invalid.
type Errors struct {
	Problems []Problem

	settled int  // so many of the problems are an earlier stage's: nothing more is said about those fields
	tooMany bool // the file has more of something than the schema allows: what is in there is not looked at
}

// maxProblems bounds what is shown of a file that is wrong all over.
const maxProblems = 100

func (e *Errors) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

func (e *Errors) Unwrap() error { return appliance.Errorf(appliance.Invalid, "%s", e.Error()) }

// add notes a problem.
func (e *Errors) add(path, hint, text string) {
	for _, p := range e.Problems[:e.settled] {
		if path == p.Path || strings.HasPrefix(path, p.Path+".") || strings.HasPrefix(path, p.Path+"[") {
			return
		}
	}
	if path == "" {
		path = "module.json"
	}
	e.Problems = append(e.Problems, Problem{Path: path, Text: text, Hint: hint})
}

// settle ends a stage. It says whether there is so much wrong that the next one, which compares more, shall not begin.
func (e *Errors) settle() (enough bool) {
	e.settled = len(e.Problems)
	return e.tooMany || e.settled > 5*maxProblems
}

// result is e sorted and without repetitions, or nil.
func (e *Errors) result() error {
	if len(e.Problems) == 0 {
		return nil
	}
	slices.SortFunc(e.Problems, func(a, b Problem) int {
		return cmp.Or(comparePaths(a.Path, b.Path), cmp.Compare(a.Text, b.Text), cmp.Compare(a.Hint, b.Hint))
	})
	e.Problems = slices.Compact(e.Problems)
	if more := len(e.Problems) - maxProblems; more > 0 {
		e.Problems = append(e.Problems[:maxProblems], Problem{Path: "module.json", Text: fmt.Sprintf("and %d more that are wrong", more)})
	}
	return e
}

// comparePaths sorts resources[10] behind resources[9].
func comparePaths(a, b string) int {
	for a != "" && b != "" {
		da, db := digits(a), digits(b)
		if da > 0 && db > 0 {
			if c := cmp.Or(cmp.Compare(da, db), cmp.Compare(a[:da], b[:db])); c != 0 {
				return c
			}
			a, b = a[da:], b[db:]
			continue
		}
		if c := cmp.Compare(a[0], b[0]); c != 0 {
			return c
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits is how many digits s begins with.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

// suggest is a hint towards what was probably meant, or what there is.
func suggest(s string, candidates []string) string {
	candidates = slices.Compact(slices.Sorted(slices.Values(candidates)))
	if near := nearest(s, candidates); near != "" {
		return "did you mean " + appliance.Quote(near) + "?"
	}
	switch len(candidates) {
	case 0:
		return "there are none"
	case 1:
		return "only " + candidates[0]
	}
	return "one of " + strings.Join(candidates[:min(30, len(candidates))], ", ")
}

// nearest is the first candidate with the fewest edits from s, empty where none is near.
func nearest(s string, candidates []string) string {
	best, least := "", 1+max(2, len(s)/3)
	if len(s) > 64 {
		return ""
	}
	for _, c := range candidates {
		if d := distance(s, c); d < least {
			best, least = c, d
		}
	}
	return best
}

// distance is the number of insertions, deletions, replacements and swaps of neighbours between a and b.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			differ := 1
			if a[i-1] == b[j-1] {
				differ = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+differ)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
