// Package identity holds the keys of a node and of the mesh, their files, and what a node trusts. Private halves are made here and
// never leave it but into their own file; what is done with a key belongs to the package that does it.
package identity
