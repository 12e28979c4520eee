// Package agent is the process on every node: it receives declarations and memberships, makes them true, and reports.
//
// engine.go applies resources and keeps the record of what was done; converge.go decides the order (pure); health.go watches
// processes; inbox.go verifies what arrives; outbox.go delivers reports; agent.go is the loop around them. What a machine can do is
// in host and its two implementations; nothing here starts a program or opens a device.
package agent
