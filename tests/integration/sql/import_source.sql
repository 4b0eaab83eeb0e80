-- A source that is taken over while it takes writes: rows of every identity, and what must not run twice.
CREATE SCHEMA shop;
CREATE TYPE shop.mood AS ENUM ('sad', 'happy');
CREATE TYPE shop.place AS (street text, number int);
CREATE TABLE shop.account (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, balance numeric(12, 2) NOT NULL, m shop.mood, tags text[],
    large text, twice numeric GENERATED ALWAYS AS (balance * 2) STORED, code int UNIQUE,
    home shop.place
);
ALTER TABLE shop.account ALTER large SET STORAGE EXTERNAL;
CREATE TABLE shop.entry (
    id bigserial PRIMARY KEY, account int REFERENCES shop.account ON DELETE CASCADE, amount numeric, at timestamptz DEFAULT now()
);
CREATE TABLE shop.history (entry int8, note text, x float8, j json);
CREATE TABLE shop.bag (a int, b text, p point, home shop.place);
ALTER TABLE shop.bag REPLICA IDENTITY FULL;
CREATE TABLE shop.part (id int, day date, v "char", PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE shop.part_1 PARTITION OF shop.part FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE shop.part_2 PARTITION OF shop.part DEFAULT;
CREATE TABLE shop."Odd %s" ("a b" text PRIMARY KEY, "c""d" interval);
CREATE FUNCTION shop.log() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO shop.history VALUES (NEW.id, 'by a trigger', 0.1, '{"a":  1}'); RETURN NULL; END $$;
CREATE TRIGGER log AFTER INSERT ON shop.entry FOR EACH ROW EXECUTE FUNCTION shop.log();
CREATE VIEW shop.rich AS SELECT a.id, a.code FROM shop.account a GROUP BY a.id HAVING sum(a.balance) > 0;
CREATE MATERIALIZED VIEW shop.counted AS SELECT count(*) AS c FROM shop.account;
GRANT SELECT ON shop.account TO import_reader;
ALTER TABLE shop.bag OWNER TO import_reader;
INSERT INTO shop.account (balance, m, tags, large, code)
SELECT g, 'happy', ARRAY['x', E'a"b\\c', NULL], repeat(md5(g::text), 100), g FROM generate_series(1, 300) g;
INSERT INTO shop.entry (account, amount) SELECT 1 + g % 300, g FROM generate_series(1, 20000) g;
INSERT INTO shop.bag SELECT g % 5, E'\t"' || g % 3, point(g % 2, 1) FROM generate_series(1, 60) g;
INSERT INTO shop.part SELECT g, '2026-01-01'::date + g % 60, 'a' FROM generate_series(1, 200) g;
INSERT INTO shop."Odd %s" VALUES ('', '1 mon -3 days'), (E'x\ny', NULL);
