// Package wire is the contract between controller and agents, and between controller and operators: subjects, envelope, declaration,
// membership, report, alive, enrolment and requests, as bytes. It decides nothing and talks to nobody. Domain packages have types of
// their own where the two would pull in different directions.
package wire

// Version is the integer a node states and the controller composes for.
//
// History:
//
//	0 (2026-12-01) frozen for ever: the envelope, the alive, and a declaration that replaces the agent by digest (Replace).
//	1 (2026-12-01) resources: package, user, directory, file, process, overlay; reports with outcomes, health, facts; membership;
//	                  drift in outcomes, notices that ask for a check or a restart; artifacts, containers, certificates, trust;
//	                  what is stopped, held or waiting; who leaves, and the notice to who was removed.
const Version = 1

// Oldest is the oldest version for which full declarations are composed; below it a node gets version 0 (UPG-3).
const Oldest = 1

// MaxEnvelope bounds an envelope with its body, in bytes: what one bus message holds.
const MaxEnvelope = 1 << 20

// MaxBody bounds a declaration's body, so that it fits into an envelope.
const MaxBody = MaxEnvelope - headerFrom - maxHeader
