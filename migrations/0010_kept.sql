-- +goose Up
ALTER TABLE kept_data ADD COLUMN bytes bigint NOT NULL DEFAULT -1 CHECK (bytes >= -1);
ALTER TABLE kept_data ADD COLUMN since timestamptz;
COMMENT ON COLUMN kept_data.bytes IS 'when it was kept; -1: not known';
COMMENT ON COLUMN kept_data.since IS 'by the node''s clock; null: not known';
