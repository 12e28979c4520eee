-- +goose Up
CREATE TABLE setting (
	module mesh_name NOT NULL REFERENCES module ON DELETE CASCADE,
	node   node_id REFERENCES node ON DELETE CASCADE,
	name   mesh_name NOT NULL,
	value  text NOT NULL CHECK (octet_length(value) <= 65536),
	set_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX setting_key ON setting (module, COALESCE(node::text, ''), name); -- PostgreSQL 14 has no NULLS NOT DISTINCT
COMMENT ON TABLE setting IS 'values that operators chose for modules; writer: setting set and unset';
COMMENT ON COLUMN setting.node IS 'null: everywhere';

ALTER TABLE assignment ADD COLUMN stopped boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN assignment.stopped IS 'an operator wants it not to run; writer: module start and stop';

ALTER TABLE node ADD COLUMN held_until timestamptz;
ALTER TABLE node ADD COLUMN drained boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN node.held_until IS 'it shall change nothing before; infinity: until it is resumed; writer: node hold and resume';
COMMENT ON COLUMN node.drained IS 'its modules shall not run, but for the base; writer: node drain and resume';

-- A status and an outcome more: the previous binary writes neither.
ALTER TABLE report_resource DROP CONSTRAINT report_resource_status_check;
ALTER TABLE report_resource ADD CONSTRAINT report_resource_status_check
	CHECK (status IN ('unchanged', 'applied', 'removed', 'kept', 'refused', 'failed', 'waiting'));
ALTER TABLE report DROP CONSTRAINT report_outcome_check;
ALTER TABLE report ADD CONSTRAINT report_outcome_check CHECK (outcome IN ('clean', 'waiting', 'refused', 'failed'));
