-- +goose Up
ALTER TABLE departed ADD COLUMN shut timestamptz;
COMMENT ON COLUMN departed.shut IS 'since when it is let in no more although its time is not over: it said too much; null: it did not';
