-- +goose Up
CREATE TABLE certificate_request (
	node     node_id NOT NULL REFERENCES node ON DELETE CASCADE,
	instance mesh_name NOT NULL,
	name     mesh_name NOT NULL,
	request  bytea NOT NULL CHECK (octet_length(request) > 0),
	PRIMARY KEY (node, instance, name)
);
COMMENT ON TABLE certificate_request IS 'keys that nodes ask to have certified, replaced whole with each statement; writer: reports';

CREATE TABLE certificate (
	id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	node      node_id NOT NULL REFERENCES node ON DELETE CASCADE,
	instance  mesh_name NOT NULL,
	name      mesh_name NOT NULL,
	names     text[] NOT NULL CHECK (cardinality(names) >= 1),
	request   bytea NOT NULL,
	der       bytea NOT NULL CHECK (octet_length(der) > 0),
	serial    text NOT NULL UNIQUE,
	issued_at timestamptz NOT NULL,
	ends_at   timestamptz NOT NULL CHECK (ends_at > issued_at),
	present   boolean NOT NULL
);
CREATE UNIQUE INDEX certificate_present ON certificate (node, instance, name) WHERE present;
COMMENT ON TABLE certificate IS 'every certificate ever issued to an instance; writer: the controller';
COMMENT ON COLUMN certificate.names IS 'sorted';
COMMENT ON COLUMN certificate.request IS 'what it was issued for: another request is another key';
COMMENT ON COLUMN certificate.present IS 'the one that is rendered now';

ALTER TABLE report ADD COLUMN requests bigint NOT NULL DEFAULT 0 CHECK (requests >= 0);
COMMENT ON COLUMN report.requests IS 'the sequence of its statement of certificate requests';
