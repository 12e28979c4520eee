-- +goose Up
CREATE DOMAIN mesh_name AS text CHECK (VALUE ~ '^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$');
CREATE DOMAIN mesh_id AS text CHECK (VALUE ~ '^m[a-z2-7]{15}$');
CREATE DOMAIN operator_id AS text CHECK (VALUE ~ '^o[a-z2-7]{15}$');
CREATE DOMAIN digest AS text CHECK (VALUE ~ '^sha256:[0-9a-f]{64}$');
-- A 32-byte key in padded base64: one text per key, since the last digit before the padding carries no spare bits.
CREATE DOMAIN key32 AS text CHECK (VALUE ~ '^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$');
CREATE DOMAIN bus_key AS text CHECK (VALUE ~ '^U[A-Z2-7]{55}$');
CREATE DOMAIN port_number AS integer CHECK (VALUE BETWEEN 1 AND 65535);

CREATE TABLE mesh (
	single       boolean PRIMARY KEY DEFAULT true CHECK (single),
	id           mesh_id NOT NULL,
	name         mesh_name NOT NULL,
	range        cidr NOT NULL,
	overlay_port port_number NOT NULL,
	epoch        bigint NOT NULL DEFAULT 1 CHECK (epoch >= 1),
	endpoints    text[] NOT NULL CHECK (cardinality(endpoints) >= 1),
	signing      bytea NOT NULL CHECK (octet_length(signing) = 32),
	sealing      text NOT NULL CHECK (sealing LIKE 'age1%'),
	bus          bus_key NOT NULL,
	bus_modules  bus_key NOT NULL CHECK (bus_modules <> bus),
	founded_at   timestamptz NOT NULL
);
COMMENT ON TABLE mesh IS 'the one mesh of these records; writer: genesis';
COMMENT ON COLUMN mesh.epoch IS 'first half of every number; writer: restore, which raises it';
COMMENT ON COLUMN mesh.endpoints IS 'the broker as host:port from outside; the first is preferred';
COMMENT ON COLUMN mesh.bus IS 'the controller''s user in account CONTROL, public half';
COMMENT ON COLUMN mesh.bus_modules IS 'the controller''s user in account MODULES, public half';

CREATE TABLE authority (
	single      boolean PRIMARY KEY DEFAULT true CHECK (single),
	certificate bytea NOT NULL CHECK (octet_length(certificate) > 0),
	made_at     timestamptz NOT NULL
);
COMMENT ON TABLE authority IS 'the mesh''s certificate authority, DER; writer: the first of those who start together';

CREATE TABLE operator (
	id       operator_id PRIMARY KEY,
	name     mesh_name NOT NULL UNIQUE,
	role     text NOT NULL CHECK (role IN ('admin', 'viewer')),
	signing  bytea NOT NULL UNIQUE CHECK (octet_length(signing) = 32),
	bus      bus_key NOT NULL UNIQUE,
	added_at timestamptz NOT NULL
);
COMMENT ON TABLE operator IS 'people and what they sign with, public halves; writer: genesis for the first, then operator commands';

CREATE TABLE audit (
	id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	at      timestamptz NOT NULL,
	who     text NOT NULL CHECK (who <> ''),
	what    text NOT NULL CHECK (what <> ''),
	subject text NOT NULL CHECK (subject <> ''),
	before  json,
	after   json
);
CREATE INDEX audit_at ON audit (at);
COMMENT ON TABLE audit IS 'one row per change, never altered; writer: the transaction that changes';

CREATE TABLE request_nonce (
	who        text NOT NULL,
	nonce      text NOT NULL CHECK (nonce <> ''),
	expires_at timestamptz NOT NULL,
	PRIMARY KEY (who, nonce)
);
CREATE INDEX request_nonce_expires ON request_nonce (expires_at);
COMMENT ON TABLE request_nonce IS 'requests carried out, so that none is carried out twice; writer: the transaction that changes';

CREATE TABLE users_file (
	single boolean PRIMARY KEY DEFAULT true CHECK (single),
	digest digest NOT NULL,
	set_at timestamptz NOT NULL
);
COMMENT ON TABLE users_file IS 'digest of the bus users last composed, never the file; writer: composition of bus users';
