// Package migrations carries the records' schema as numbered SQL files. Files are only ever appended, and each leaves the previous
// binary able to run; no Go code and no data of an installation belongs here.
package migrations

import "embed"

//go:embed *.sql
var FS embed.FS
