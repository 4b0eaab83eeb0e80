-- The table whose single rows the latency measurement updates.
CREATE TABLE commit_latency (id int PRIMARY KEY, value int NOT NULL);
INSERT INTO commit_latency SELECT id, 0 FROM generate_series(1, :rows) id;
