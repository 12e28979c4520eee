// Package rules holds the repository to its own directions: who may import what, where programs are started, and which
// rules of the specification no test names yet.
//
// Its tests read the source files themselves, so that no cached build answers for them. It holds no rule about
// behaviour: those are tests of the packages that behave.
package rules
