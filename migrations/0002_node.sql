-- +goose Up
CREATE DOMAIN node_id AS text CHECK (VALUE ~ '^n[a-z2-7]{15}$');
CREATE DOMAIN token_id AS text CHECK (VALUE ~ '^t[a-z2-7]{15}$');

CREATE TABLE name (
	name   mesh_name PRIMARY KEY,
	node   node_id UNIQUE,
	module mesh_name,
	CHECK (num_nonnulls(node, module) = 1),
	UNIQUE (name, node),
	UNIQUE (name, module)
);
COMMENT ON TABLE name IS 'the one namespace of nodes, modules and instances; writer: whatever makes the thing named';
COMMENT ON COLUMN name.module IS 'the module that has this name or whose instances have it';

CREATE TABLE node (
	id          node_id PRIMARY KEY,
	name        mesh_name NOT NULL UNIQUE,
	hub         boolean NOT NULL,
	mode        text NOT NULL CHECK (mode IN ('converged', 'adopted')),
	labels      json NOT NULL,
	state       text NOT NULL CHECK (state LIKE '/%'),
	endpoint    text CHECK (endpoint <> ''),
	certificate bytea NOT NULL CHECK (octet_length(certificate) > 0),
	enrolled_at timestamptz NOT NULL,
	FOREIGN KEY (name, id) REFERENCES name (name, node) DEFERRABLE INITIALLY DEFERRED
);
ALTER TABLE name ADD FOREIGN KEY (node) REFERENCES node DEFERRABLE INITIALLY DEFERRED;
CREATE UNIQUE INDEX node_hub ON node (hub) WHERE hub;
COMMENT ON TABLE node IS 'the machines of the mesh; writer: enrolment (the hub''s at genesis)';
COMMENT ON COLUMN node.state IS 'its installation folder';
COMMENT ON COLUMN node.endpoint IS 'host:port of its overlay socket where known';
COMMENT ON COLUMN node.certificate IS 'DER, over its TLS key';

CREATE TABLE node_key (
	id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	node    node_id NOT NULL REFERENCES node,
	kind    text NOT NULL CHECK (kind IN ('identity', 'overlay', 'sealing', 'tls', 'bus')),
	public  text NOT NULL,
	since   timestamptz NOT NULL,
	retired timestamptz,
	CHECK (CASE kind
		WHEN 'sealing' THEN public LIKE 'age1%'
		WHEN 'bus' THEN public ~ '^U[A-Z2-7]{55}$'
		WHEN 'tls' THEN public ~ '^[A-Za-z0-9+/]+={0,2}$'
		ELSE public ~ '^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$' END)
);
CREATE UNIQUE INDEX node_key_one_live ON node_key (node, kind) WHERE retired IS NULL;
CREATE UNIQUE INDEX node_key_live_identity ON node_key (public) WHERE kind = 'identity' AND retired IS NULL;
CREATE UNIQUE INDEX node_key_live_overlay ON node_key (public) WHERE kind = 'overlay' AND retired IS NULL;
CREATE UNIQUE INDEX node_key_live_sealing ON node_key (public) WHERE kind = 'sealing' AND retired IS NULL;
CREATE UNIQUE INDEX node_key_live_tls ON node_key (public) WHERE kind = 'tls' AND retired IS NULL;
CREATE UNIQUE INDEX node_key_live_bus ON node_key (public) WHERE kind = 'bus' AND retired IS NULL;
COMMENT ON TABLE node_key IS 'public halves of what nodes made; writer: enrolment and rekey';
COMMENT ON COLUMN node_key.retired IS 'null while the key is live; no two live keys are the same';

CREATE TABLE node_alive (
	node         node_id PRIMARY KEY REFERENCES node,
	last_seen    timestamptz,
	connected_at timestamptz,
	run          text NOT NULL DEFAULT '',
	machine      text NOT NULL DEFAULT '',
	capabilities json NOT NULL
);
COMMENT ON TABLE node_alive IS 'what heartbeats say; writer: the alive loop (the row itself: enrolment)';
COMMENT ON COLUMN node_alive.connected_at IS 'first heartbeat ever; until then its enrolment may be answered again';

CREATE TABLE overlay_address (
	address inet PRIMARY KEY CHECK (masklen(address) = CASE family(address) WHEN 4 THEN 32 ELSE 128 END),
	node    node_id NOT NULL UNIQUE REFERENCES node
);
COMMENT ON TABLE overlay_address IS 'who has which address of the range; writer: enrolment';

CREATE TABLE token (
	id         token_id PRIMARY KEY,
	name       mesh_name,
	labels     json NOT NULL,
	uses       integer NOT NULL CHECK (uses BETWEEN 1 AND 10000),
	used       integer NOT NULL DEFAULT 0 CHECK (used BETWEEN 0 AND uses),
	bus        bus_key NOT NULL UNIQUE,
	claim      bytea NOT NULL UNIQUE CHECK (octet_length(claim) = 32),
	created_at timestamptz NOT NULL,
	expires_at timestamptz NOT NULL CHECK (expires_at > created_at),
	revoked_at timestamptz,
	CHECK (name IS NULL OR uses = 1)
);
COMMENT ON TABLE token IS 'rights to join, public halves only; writer: token commands';
COMMENT ON COLUMN token.used IS 'writer: enrolment';
COMMENT ON COLUMN token.name IS 'the name its node will have, whatever the joiner asks for';

CREATE TABLE enrolment (
	token    token_id NOT NULL REFERENCES token,
	identity key32 NOT NULL,
	node     node_id NOT NULL UNIQUE REFERENCES node,
	at       timestamptz NOT NULL,
	PRIMARY KEY (token, identity)
);
COMMENT ON TABLE enrolment IS 'what each token was spent on, so that the same claimant gets the same answer; writer: enrolment';
