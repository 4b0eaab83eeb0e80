-- sysbench's table and index as its own `prepare` makes them, with explicit ids.
CREATE TABLE :"table" (
    id  SERIAL,
    k   INTEGER DEFAULT '0' NOT NULL,
    c   CHAR(120) DEFAULT '' NOT NULL,
    pad CHAR(60) DEFAULT '' NOT NULL,
    PRIMARY KEY (id)
);
INSERT INTO :"table" (id, k, c, pad)
SELECT id,
       1 + floor(random() * :rows),
       -- `id > 0` ties the digits to the row, or all rows would share one value.
       (SELECT string_agg(lpad(floor(random() * 1e11)::bigint::text, 11, '0'), '-')
          FROM generate_series(1, 10) WHERE id > 0),
       (SELECT string_agg(lpad(floor(random() * 1e11)::bigint::text, 11, '0'), '-')
          FROM generate_series(1, 5) WHERE id > 0)
  FROM generate_series(1, :last, :step) id;
CREATE INDEX ON :"table" (k);
