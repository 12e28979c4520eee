-- +goose Up
CREATE TABLE module (
	name          mesh_name PRIMARY KEY,
	manifest      json NOT NULL,
	digest        digest NOT NULL,
	registered_at timestamptz NOT NULL,
	FOREIGN KEY (name, name) REFERENCES name (name, module)
);
COMMENT ON TABLE module IS 'modules known and their present manifest in canonical form; writer: registration';

CREATE TABLE assignment (
	instance    mesh_name NOT NULL,
	node        node_id NOT NULL REFERENCES node,
	module      mesh_name NOT NULL REFERENCES module,
	assigned_at timestamptz NOT NULL,
	PRIMARY KEY (instance, node),
	FOREIGN KEY (instance, module) REFERENCES name (name, module)
);
COMMENT ON TABLE assignment IS 'which module runs where under which name; writer: module assign and unassign, genesis for the base';

CREATE TABLE port (
	instance mesh_name NOT NULL,
	node     node_id NOT NULL,
	name     mesh_name NOT NULL,
	protocol text NOT NULL CHECK (protocol IN ('tcp', 'udp')),
	number   port_number NOT NULL,
	origin   text NOT NULL CHECK (origin IN ('assigned', 'given')),
	PRIMARY KEY (instance, node, name, origin),
	FOREIGN KEY (instance, node) REFERENCES assignment ON DELETE CASCADE
);
CREATE UNIQUE INDEX port_assigned ON port (node, protocol, number) WHERE origin = 'assigned';
COMMENT ON TABLE port IS 'port numbers that differ from the manifest''s; writer: module assign for assigned, port give for given';

CREATE TABLE carried_port (
	node     node_id NOT NULL REFERENCES node,
	protocol text NOT NULL CHECK (protocol IN ('tcp', 'udp')),
	number   port_number NOT NULL,
	part     text NOT NULL,
	PRIMARY KEY (node, protocol, number)
);
COMMENT ON TABLE carried_port IS 'what a machine''s carried resources bind, replaced whole with each statement; writer: reports';
