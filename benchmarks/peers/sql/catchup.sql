-- The tables that clients write to while a member is away.
CREATE TABLE catchup_a (id int PRIMARY KEY, value int NOT NULL);
CREATE TABLE catchup_b (id int PRIMARY KEY, value int NOT NULL, note text);
CREATE TABLE catchup_child (
    id bigserial PRIMARY KEY, parent int NOT NULL REFERENCES catchup_a, note text);
CREATE TABLE catchup_log (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), note text);
INSERT INTO catchup_a SELECT id, 0 FROM generate_series(1, :rows) id;
INSERT INTO catchup_b SELECT id, 0, '' FROM generate_series(1, :rows) id;
