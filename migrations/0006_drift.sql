-- +goose Up
ALTER TABLE report_resource ADD COLUMN drift text NOT NULL DEFAULT '';
COMMENT ON COLUMN report_resource.drift IS 'what differed from what was made, since the declaration; empty: nothing did';
