package appliance

import (
	"crypto/rand"
	"encoding/base32"
	"regexp"
)

// Ids are 16 characters: a letter for what they name and 75 random bits. They fit a bus subject token.
type (
	MeshID     string
	NodeID     string
	TokenID    string
	OperatorID string
)

var idGrammar = regexp.MustCompile(`^[mnto][a-z2-7]{15}$`)

var idText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func newID(letter string) string {
	var b [10]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return letter + idText.EncodeToString(b[:])[:15]
}

func NewMeshID() MeshID         { return MeshID(newID("m")) }
func NewNodeID() NodeID         { return NodeID(newID("n")) }
func NewTokenID() TokenID       { return TokenID(newID("t")) }
func NewOperatorID() OperatorID { return OperatorID(newID("o")) }

func validID(letter byte, s string) bool { return idGrammar.MatchString(s) && s[0] == letter }

func (id MeshID) Valid() bool     { return validID('m', string(id)) }
func (id NodeID) Valid() bool     { return validID('n', string(id)) }
func (id TokenID) Valid() bool    { return validID('t', string(id)) }
func (id OperatorID) Valid() bool { return validID('o', string(id)) }

// NewRunID names one start of a process, so that two machines under one key are told apart.
func NewRunID() string { return newID("r") }
