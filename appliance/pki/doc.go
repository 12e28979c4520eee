// Package pki is the mesh's own certificate authority: what it signs, and how servers and clients of the mesh verify each other.
// It signs public halves it is given; making and keeping keys, and recording what was signed, belong elsewhere.
package pki
