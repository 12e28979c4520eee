//go:build race

package wg

func init() { raced = true }
