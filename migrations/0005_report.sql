-- +goose Up
CREATE TABLE report (
	node     node_id PRIMARY KEY REFERENCES node,
	account  bigint NOT NULL DEFAULT 0 CHECK (account >= 0),
	carried  bigint NOT NULL DEFAULT 0 CHECK (carried >= 0),
	warnings bigint NOT NULL DEFAULT 0 CHECK (warnings >= 0),
	epoch    bigint,
	counter  bigint,
	digest   digest,
	outcome  text CHECK (outcome IN ('clean', 'refused', 'failed')),
	made_at  timestamptz,
	CHECK (num_nulls(epoch, counter, digest, outcome, made_at) IN (0, 5)),
	CHECK ((account = 0) = (digest IS NULL))
);
COMMENT ON TABLE report IS 'what each node last said; writer: reports';
COMMENT ON COLUMN report.account IS 'sequence of the report whose account of an apply is recorded; an older one never overwrites it';
COMMENT ON COLUMN report.carried IS 'the same for its statement of carried ports';
COMMENT ON COLUMN report.warnings IS 'the same for its warnings';
COMMENT ON COLUMN report.made_at IS 'by the node''s clock';

CREATE TABLE report_resource (
	node     node_id NOT NULL REFERENCES node,
	position integer NOT NULL,
	id       text NOT NULL,
	instance text NOT NULL,
	kind     text NOT NULL,
	status   text NOT NULL CHECK (status IN ('unchanged', 'applied', 'removed', 'kept', 'refused', 'failed')),
	step     text NOT NULL,
	error    text NOT NULL,
	log      text[] NOT NULL,
	PRIMARY KEY (node, position)
);
COMMENT ON TABLE report_resource IS 'the account, resource by resource, replaced whole; writer: reports';

CREATE TABLE instance_health (
	node     node_id NOT NULL REFERENCES node,
	instance text NOT NULL,
	state    text NOT NULL CHECK (state IN ('starting', 'healthy', 'unhealthy', 'crash-looping', 'stopped')),
	since    timestamptz NOT NULL,
	why      text NOT NULL,
	log      text[] NOT NULL,
	PRIMARY KEY (node, instance)
);
COMMENT ON TABLE instance_health IS 'how instances are, replaced whole with the account; writer: reports';

CREATE TABLE kept_data (
	node     node_id NOT NULL REFERENCES node,
	instance text NOT NULL,
	path     text NOT NULL,
	PRIMARY KEY (node, path)
);
COMMENT ON TABLE kept_data IS 'data that no declaration names any more, replaced whole with the account; writer: reports';

CREATE TABLE warning (
	node     node_id NOT NULL REFERENCES node,
	position integer NOT NULL,
	code     text NOT NULL,
	severity text NOT NULL CHECK (severity IN ('info', 'warning', 'error')),
	text     text NOT NULL,
	remedy   text NOT NULL,
	PRIMARY KEY (node, position)
);
COMMENT ON TABLE warning IS 'standing conditions a node states, replaced whole with each report; writer: reports';
