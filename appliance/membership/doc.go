// Package membership is the one signed document of who is in the mesh, and what follows from it: a node's peers and its hosts block.
// The same pure functions serve controller and node (NET-11). Devices and files are made true elsewhere.
package membership
