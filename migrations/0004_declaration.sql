-- +goose Up
CREATE TABLE plan (
	node        node_id NOT NULL REFERENCES node,
	number      bigint NOT NULL CHECK (number >= 1),
	content     json NOT NULL,
	digest      digest NOT NULL,
	approved    boolean NOT NULL,
	approved_by text NOT NULL,
	approved_at timestamptz NOT NULL,
	PRIMARY KEY (node, number)
);
CREATE UNIQUE INDEX plan_approved ON plan (node) WHERE approved;
COMMENT ON TABLE plan IS 'every plan ever approved; writer: push';
COMMENT ON COLUMN plan.approved IS 'the one plan of its node that is rendered now';

CREATE TABLE declaration (
	node         node_id NOT NULL REFERENCES node,
	epoch        bigint NOT NULL CHECK (epoch >= 1),
	counter      bigint NOT NULL CHECK (counter >= 1),
	digest       digest NOT NULL,
	wire_version integer NOT NULL CHECK (wire_version >= 0),
	envelope     bytea,
	issued_at    timestamptz NOT NULL,
	PRIMARY KEY (node, epoch, counter)
);
CREATE UNIQUE INDEX declaration_kept ON declaration (node) WHERE envelope IS NOT NULL;
COMMENT ON TABLE declaration IS 'every declaration ever issued; writer: rendering';
COMMENT ON COLUMN declaration.digest IS 'of the content';
COMMENT ON COLUMN declaration.envelope IS 'signed bytes around the content; kept for the last one only';

CREATE TABLE membership_doc (
	epoch     bigint NOT NULL CHECK (epoch >= 1),
	counter   bigint NOT NULL CHECK (counter >= 1),
	digest    digest NOT NULL,
	envelope  bytea,
	issued_at timestamptz NOT NULL,
	PRIMARY KEY (epoch, counter)
);
CREATE UNIQUE INDEX membership_doc_kept ON membership_doc ((true)) WHERE envelope IS NOT NULL;
COMMENT ON TABLE membership_doc IS 'every membership ever issued; writer: publication of the membership';
COMMENT ON COLUMN membership_doc.envelope IS 'signed bytes; kept for the last one only';
