-- +goose Up
CREATE INDEX certificate_issued ON certificate (node, instance, name, issued_at);
