// Package scenarios tells, on beds of real hosts with the real binary, what a mesh does as a whole.
//
// It holds tests only. A case that a lower level can show (a pure package, store and bus, one process with several
// agents, a command script) belongs there.
package scenarios
