-- The tables that a subscriber follows; it has them without rows (rows=0).
CREATE TABLE followed_a (id int PRIMARY KEY, value int NOT NULL);
CREATE TABLE followed_b (id int PRIMARY KEY, value int NOT NULL, note text);
CREATE TABLE followed_log (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), note text);
CREATE TABLE followed_mark (id int PRIMARY KEY);
INSERT INTO followed_a SELECT id, 0 FROM generate_series(1, :rows) id;
INSERT INTO followed_b SELECT id, 0, '' FROM generate_series(1, :rows) id;
