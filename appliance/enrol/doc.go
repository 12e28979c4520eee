// Package enrol is how a machine becomes a node: the token, the challenge, the claim and the answer, for the joiner and for the
// controller. Pure: it decides whether bytes prove what they say. Connecting, spending a token and recording a node are done elsewhere.
package enrol
