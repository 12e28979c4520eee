// Package appliance is the vocabulary of the mesh: names, ids, numbers, digests and the error that survives the wire.
// It imports the standard library only; nothing that decides, stores or sends belongs here.
//
// One word per thing, in code, messages and documents alike:
//
//	mesh         the machines under one controller; has an id, a name, a signing key, a sealing key, an authority
//	hub          the machine where genesis ran; holds broker, store and controller
//	node         a machine in the mesh, the hub included; its identity is its key, its name is a label
//	foundation   broker and store together
//	carried      a resource raised from a bundle in the binary before any mesh declared it
//	module       a unit of software with a manifest and artifacts
//	instance     a module assigned to a node under a name
//	bundle       a module shipped inside the binary; base bundles are what genesis raises
//	seat         a named role held by one module, per mesh or per node
//	provision    something a module offers and others need
//	intent       what operators recorded
//	facts        what is so now
//	plan         the resolved intent for one node, approved by push
//	declaration  an approved plan rendered with today's facts for one node: signed, numbered, digested
//	membership   one signed document, the same for all: nodes, names, addresses, overlay keys, endpoints, revocations
//	report       what a node did about a declaration, or a fact it states
//	alive        a node's heartbeat; says only that it is there
//	current      the node's last report names the digest last sent to it
//	outcome      whether applying went well
//	health       whether it works
//	records      the rows in PostgreSQL: the truth about intent, facts and history
//	bus          NATS with JetStream
package appliance
