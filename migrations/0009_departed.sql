-- +goose Up
CREATE TABLE departed (
	identity key32 PRIMARY KEY,
	node     node_id NOT NULL,
	name     mesh_name NOT NULL,
	bus      bus_key NOT NULL UNIQUE,
	since    timestamptz NOT NULL,
	until    timestamptz NOT NULL CHECK (until > since)
);
COMMENT ON TABLE departed IS 'machines that are nodes no more and are let in to be told so; writer: node remove, and enrolment in the place of another';
COMMENT ON COLUMN departed.node IS 'the id it had; one that was replaced left it to its successor';
COMMENT ON COLUMN departed.until IS 'from then on it is not let in';

CREATE TABLE revoked (
	serial  text PRIMARY KEY CHECK (serial ~ '^[0-9a-f]{1,40}$'),
	at      timestamptz NOT NULL,
	ends_at timestamptz NOT NULL
);
COMMENT ON TABLE revoked IS 'certificates that hold no longer; writer: node remove, and enrolment in the place of another';
COMMENT ON COLUMN revoked.ends_at IS 'when the certificate ends by itself: nobody need be told from then on';

ALTER TABLE token ADD COLUMN replaces node_id;
COMMENT ON COLUMN token.replaces IS 'the node whose place its machine takes; null: it becomes a node of its own';

-- What is known of a node goes with it. The previous binary removes none.
ALTER TABLE name DROP CONSTRAINT name_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE node_key DROP CONSTRAINT node_key_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE node_alive DROP CONSTRAINT node_alive_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE overlay_address DROP CONSTRAINT overlay_address_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE enrolment DROP CONSTRAINT enrolment_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE assignment DROP CONSTRAINT assignment_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE carried_port DROP CONSTRAINT carried_port_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE plan DROP CONSTRAINT plan_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE declaration DROP CONSTRAINT declaration_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE report DROP CONSTRAINT report_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE report_resource DROP CONSTRAINT report_resource_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE instance_health DROP CONSTRAINT instance_health_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE kept_data DROP CONSTRAINT kept_data_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
ALTER TABLE warning DROP CONSTRAINT warning_node_fkey, ADD FOREIGN KEY (node) REFERENCES node ON DELETE CASCADE;
