-- Objects that a table's rows depend on, changed under them; values whose form is not what travels.
-- Each case leaves all members with the same rows, or is refused. A message ends with a line that ends in a semicolon.

-- case: the index goes by which rows were known
-- tables: bag
CREATE TABLE bag (a int NOT NULL, b int);
CREATE UNIQUE INDEX bag_a ON bag (a);
INSERT INTO bag VALUES (1, 1), (2, 2);
DROP INDEX bag_a;
UPDATE bag SET b = 3 WHERE a = 1;
INSERT INTO bag VALUES (1, 3);
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 1);

-- case: the index goes between rows
-- tables: bag
CREATE TABLE bag (a int NOT NULL, b int NOT NULL);
CREATE UNIQUE INDEX bag_a ON bag (a);
CREATE UNIQUE INDEX bag_b ON bag (b);
INSERT INTO bag VALUES (1, 1), (2, 2);
BEGIN;
UPDATE bag SET b = b + 10;
UPDATE bag SET a = a + 10;
ALTER INDEX bag_a RENAME TO "bag A";
DROP INDEX "bag A";
UPDATE bag SET a = 7;
UPDATE bag SET a = 8 WHERE b = 11;
DROP INDEX bag_b;
INSERT INTO bag VALUES (7, 12);
UPDATE bag SET b = 0;
DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 7);
COMMIT;
UPDATE bag SET b = 1;

-- case: the index of a partitioned table goes
-- tables: bag
CREATE TABLE bag (a int NOT NULL, b int) PARTITION BY RANGE (a);
CREATE TABLE bag_1 PARTITION OF bag FOR VALUES FROM (0) TO (10);
CREATE UNIQUE INDEX bag_a ON bag (a);
INSERT INTO bag VALUES (1, 1), (2, 2);
DROP INDEX bag_a;
UPDATE bag SET b = 3;

-- case: a text search configuration under a generated column
-- tables: words
-- refused
CREATE TEXT SEARCH CONFIGURATION cfg (COPY = pg_catalog.english);
CREATE TABLE words (id int PRIMARY KEY, b text, ts tsvector GENERATED ALWAYS AS (to_tsvector('cfg', b)) STORED);
INSERT INTO words VALUES (1, 'running');
ALTER TEXT SEARCH CONFIGURATION cfg ALTER MAPPING FOR asciiword WITH simple;

-- case: a text search dictionary under a generated column
-- tables: words
-- refused
CREATE TEXT SEARCH DICTIONARY dict (TEMPLATE = simple, Accept = true);
CREATE TEXT SEARCH CONFIGURATION cfg (COPY = pg_catalog.simple);
ALTER TEXT SEARCH CONFIGURATION cfg ALTER MAPPING FOR asciiword WITH dict;
CREATE TABLE words (id int PRIMARY KEY, b text, ts tsvector GENERATED ALWAYS AS (to_tsvector('cfg', b)) STORED);
INSERT INTO words VALUES (1, 'running');
ALTER TEXT SEARCH DICTIONARY dict (STOPWORDS = english);

-- case: a text search configuration in an array under a CHECK
-- tables: words
-- refused
CREATE TEXT SEARCH CONFIGURATION cfg (COPY = pg_catalog.english);
CREATE TABLE words (id int PRIMARY KEY, b text CHECK (to_tsvector(('{cfg}'::regconfig[])[1], b) IS NOT NULL));
ALTER TEXT SEARCH CONFIGURATION cfg ALTER MAPPING FOR asciiword WITH simple;

-- case: text search configurations beside generated columns
-- tables: words
CREATE TEXT SEARCH CONFIGURATION cfg (COPY = pg_catalog.english);
CREATE TEXT SEARCH CONFIGURATION other (COPY = pg_catalog.english);
CREATE TABLE words (id int PRIMARY KEY, b text, ts tsvector GENERATED ALWAYS AS (to_tsvector('cfg', b)) STORED);
CREATE INDEX ON words USING gin (to_tsvector('other', b));
INSERT INTO words (id, b) VALUES (1, 'running');
ALTER TEXT SEARCH CONFIGURATION other ALTER MAPPING FOR asciiword WITH simple;
ALTER TEXT SEARCH CONFIGURATION cfg RENAME TO cfg2;
ALTER TEXT SEARCH CONFIGURATION cfg2 OWNER TO CURRENT_USER;
UPDATE words SET b = b, id = 2;
ALTER TABLE words DROP ts;
ALTER TEXT SEARCH CONFIGURATION cfg2 ALTER MAPPING FOR asciiword WITH simple;
ALTER TABLE words ADD ts tsvector GENERATED ALWAYS AS (to_tsvector('cfg2', b)) STORED;
UPDATE words SET b = b || ' walking';

-- case: values in a column that is PLAIN afterwards
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, b text);
INSERT INTO doc SELECT 1, string_agg(md5(g::text), '') FROM generate_series(1, 600) g;
ALTER TABLE doc ALTER b SET STORAGE PLAIN;
UPDATE doc SET id = 2;

-- case: a PLAIN column from the first
-- tables: doc, source
CREATE TABLE source (id int PRIMARY KEY, b text);
INSERT INTO source VALUES (1, repeat('a', 3000)), (2, repeat('b', 1000));
CREATE TABLE doc (id int PRIMARY KEY, b text);
ALTER TABLE doc ALTER b SET STORAGE PLAIN;
INSERT INTO doc SELECT id, b || '' FROM source;
UPDATE doc SET id = id + 10;

-- case: a compressed value is copied into a PLAIN column
-- tables: doc, source
-- refused
CREATE TABLE source (id int PRIMARY KEY, b text);
INSERT INTO source VALUES (1, repeat('a', 30000));
CREATE TABLE doc (b text);
ALTER TABLE doc ALTER b SET STORAGE PLAIN;
INSERT INTO doc SELECT b FROM source;

-- case: a compressed value is written into a PLAIN column afterwards
-- tables: doc, source
-- refused
CREATE TABLE source (id int PRIMARY KEY, b text);
INSERT INTO source VALUES (1, repeat('a', 30000));
CREATE TABLE doc (id int PRIMARY KEY, b text);
ALTER TABLE doc ALTER b SET STORAGE PLAIN;
INSERT INTO doc VALUES (1, 'a');
UPDATE doc SET b = s.b FROM source s;

-- case: an index of an EXTERNAL column
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, b text);
ALTER TABLE doc ALTER b SET STORAGE EXTERNAL;
CREATE INDEX ON doc (b);

-- case: an indexed column that is EXTERNAL afterwards
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, b text UNIQUE);
ALTER TABLE doc ALTER b SET STORAGE EXTERNAL;

-- case: a local table with a PLAIN column becomes replicated
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, b text);
SELECT pgherd.set_local('doc');
ALTER TABLE doc ALTER b SET STORAGE PLAIN;
SELECT pgherd.set_replicated('doc');

-- case: storage that takes every value
-- tables: doc
CREATE TABLE doc (id int PRIMARY KEY, b text, c text, n numeric, q tsquery, w text[]);
ALTER TABLE doc ALTER b SET STORAGE EXTERNAL, ALTER c SET STORAGE MAIN, ALTER n SET STORAGE EXTENDED;
CREATE INDEX ON doc (c, n, q);
CREATE INDEX ON doc (length(b));
CREATE INDEX ON doc USING gin (w);
INSERT INTO doc SELECT 1, string_agg(md5(g::text), ''), 'c', 1.5, 'a & b', '{x}' FROM generate_series(1, 600) g;
UPDATE doc SET id = 2, q = 'c';

-- case: a publication of deletes without updates
-- tables: bag
-- refused
CREATE TABLE bag (a int UNIQUE, b int);
CREATE PUBLICATION border_objects FOR TABLE bag WITH (publish = 'insert, delete');
INSERT INTO bag VALUES (1, 1);
UPDATE bag SET a = 5;

-- case: publications
-- tables: bag
CREATE TABLE bag (a int UNIQUE, b int);
CREATE PUBLICATION border_objects FOR TABLE bag WITH (publish = 'insert, truncate');
INSERT INTO bag VALUES (1, 1);
DELETE FROM bag;
ALTER PUBLICATION border_objects SET (publish = 'insert, update, delete');
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag VALUES (1, 1);
UPDATE bag SET a = 5;
DROP PUBLICATION border_objects;

-- case: a view that skips what is locked
-- tables: bag
-- refused
CREATE TABLE bag (v int);
CREATE MATERIALIZED VIEW seen AS SELECT v FROM bag FOR UPDATE SKIP LOCKED;

-- case: a view of a view that locks
-- tables: bag
-- refused
CREATE TABLE bag (v int);
CREATE VIEW looked AS SELECT v FROM bag FOR SHARE NOWAIT;
CREATE MATERIALIZED VIEW seen AS SELECT v FROM looked;

-- case: an array of rows as they lie
-- tables: bag
-- refused
CREATE TABLE bag (v int);
CREATE MATERIALIZED VIEW seen AS SELECT ARRAY(SELECT v FROM bag) AS a;

-- case: an array of rows as they lie beside one in order
-- tables: bag
-- refused
CREATE TABLE bag (v int);
CREATE MATERIALIZED VIEW seen AS
    SELECT ARRAY(SELECT v FROM bag ORDER BY v) AS a, ARRAY(SELECT b.v FROM bag b WHERE b.v > ALL (SELECT 1)) AS b ORDER BY 1;

-- case: an aggregate over a window as its rows lie
-- tables: bag
-- refused
CREATE TABLE bag (v int);
CREATE MATERIALIZED VIEW seen AS SELECT array_agg(v) OVER () AS a FROM bag;

-- case: arrays and windows in order
-- tables: bag, seen
CREATE TABLE bag (v int);
INSERT INTO bag VALUES (3), (1), (2);
CREATE MATERIALIZED VIEW seen AS
    SELECT ARRAY(SELECT b.v FROM bag b WHERE EXISTS (SELECT FROM bag) ORDER BY b.v, (SELECT max(v) FROM bag)) AS a,
           array_agg(v) OVER (ORDER BY v) AS w, (SELECT count(*) FROM bag) AS c, v = ANY (ARRAY(SELECT 1 ORDER BY 1)) AS o
      FROM bag;

-- case: JSON deeper than anybody can read
-- tables: doc
-- refused 54001
CREATE TABLE doc (id int PRIMARY KEY, j json);
DO $$ DECLARE j json := '1'; BEGIN
    FOR i IN 1..60000 LOOP j := json_build_array(j); END LOOP; INSERT INTO doc VALUES (1, j); END $$;

-- case: JSON deeper than anybody can read in another type
-- tables: doc
-- refused 54001
CREATE TYPE pair AS (a int, j json[]);
CREATE TABLE doc (id int PRIMARY KEY, p pair);
DO $$ DECLARE j json := '1'; BEGIN
    FOR i IN 1..60000 LOOP j := json_build_array(j); END LOOP; INSERT INTO doc VALUES (1, ROW(1, ARRAY[j])); END $$;

-- case: JSON as it was written
-- tables: doc
CREATE TABLE doc (id int PRIMARY KEY, j json, k json);
INSERT INTO doc VALUES (1, '{"a" : 1.0, "a":  2 }', NULL), (2, NULL, '[ "\u00e4" ]');
UPDATE doc SET j = json_build_object('x', k), k = j;
UPDATE doc SET id = id + 10;

-- case: a column of our type
-- tables: bag
-- refused
CREATE TABLE bag (v int);
CREATE TABLE other (id int PRIMARY KEY, c pgherd.committing_0);

-- case: a temporary view of our table
-- tables: bag
-- refused
CREATE TABLE bag (v int);
CREATE TEMP VIEW seen AS SELECT gid FROM pgherd.applied;

-- case: a function over our type
-- tables: bag
-- refused
CREATE TABLE bag (v int);
CREATE FUNCTION looks(n pgherd.node) RETURNS int LANGUAGE sql AS 'SELECT 1';

-- case: a default that calls what may not be called
-- tables: bag
-- refused
CREATE TABLE bag (v int, side int);
ALTER TABLE bag ALTER side SET DEFAULT pgherd.capture_side('1');

-- case: what everybody may call
-- tables: bag
CREATE TABLE bag (v int, token text DEFAULT pgherd.current_token(), gid int8 DEFAULT pgherd.last_gid());
CREATE VIEW seen AS SELECT pgherd.last_gid() AS gid, pgherd.why_read_only() AS why;
INSERT INTO bag VALUES (1);

-- case: many columns, several rows
-- tables: wide
DO $$ BEGIN EXECUTE (SELECT format('CREATE TABLE wide (id int PRIMARY KEY, %s)', string_agg('c' || g || ' int', ', '))
                       FROM generate_series(1, 850) g); END $$;
INSERT INTO wide (id, c1) VALUES (1, 1), (2, 2);
UPDATE wide SET c6 = 5;
BEGIN;
UPDATE wide SET id = id + 10;
UPDATE wide SET c850 = id;
COMMIT;

-- case: generated columns for rows that are there
-- tables: bag
CREATE TABLE bag (a int, b text) PARTITION BY RANGE (a);
CREATE TABLE bag_1 PARTITION OF bag FOR VALUES FROM (0) TO (10);
INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, 'y');
ALTER TABLE bag ADD g int GENERATED ALWAYS AS (a * 2) STORED, ADD plain text;
ALTER TABLE bag ADD h text GENERATED ALWAYS AS (upper(b)) STORED;
UPDATE bag SET a = a + 1, plain = h;

-- case: a generated column beside one that is not
-- tables: bag
-- refused
CREATE TABLE bag (a int);
INSERT INTO bag VALUES (1);
ALTER TABLE bag ADD g int GENERATED ALWAYS AS (a * 2) STORED, ADD at timestamptz DEFAULT clock_timestamp();

-- case: a generated column beside a number
-- tables: bag
-- refused
CREATE TABLE bag (a int);
INSERT INTO bag VALUES (1);
ALTER TABLE bag ADD g int GENERATED ALWAYS AS (a * 2) STORED, ADD id int GENERATED ALWAYS AS IDENTITY;

-- case: an index of values that were compressed otherwise
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, b text);
BEGIN;
SET LOCAL default_toast_compression = 'lz4';
INSERT INTO doc SELECT 1, repeat('a', 500) || r.r || repeat('b', 3000) || r.r
  FROM (SELECT string_agg(md5(g::text), '') AS r FROM generate_series(1, 66) g) r;
COMMIT;
CREATE INDEX ON doc (b);

-- case: an index of values that are compressed alike
-- tables: doc
BEGIN;
SET LOCAL default_toast_compression = 'lz4';
CREATE TABLE doc (id int PRIMARY KEY, b text, c text COMPRESSION lz4);
INSERT INTO doc VALUES (1, repeat('x', 6000), repeat('x', 6000));
COMMIT;
UPDATE doc SET b = b || '' WHERE pg_column_compression(b) <> 'pglz';
CREATE INDEX ON doc (b, c);
ALTER TABLE doc ADD UNIQUE (c);
UPDATE doc SET id = 2;

-- case: a value is copied compressed into an indexed column of another method
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, v text COMPRESSION lz4);
CREATE TABLE found (id int PRIMARY KEY, v text COMPRESSION pglz);
CREATE INDEX ON found (v);
INSERT INTO doc VALUES (1, repeat('x', 6000));
INSERT INTO found SELECT id, v || '' FROM doc;
INSERT INTO found SELECT 2, v FROM doc;

-- case: many rows get a compressed value of another method
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, v text COMPRESSION lz4);
CREATE TABLE found (id int PRIMARY KEY, v text COMPRESSION pglz);
CREATE INDEX ON found (id) INCLUDE (v);
INSERT INTO doc VALUES (1, repeat('x', 6000));
INSERT INTO found SELECT i, '' FROM generate_series(1, 3) i;
UPDATE found SET v = d.v FROM doc d WHERE found.id > 1;

-- case: a row without a key gets a compressed value of another method
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, v text COMPRESSION pglz);
CREATE TABLE bag (a int, v text COMPRESSION lz4);
CREATE INDEX ON bag (v);
INSERT INTO doc VALUES (1, repeat('x', 6000));
INSERT INTO bag VALUES (1, repeat('x', 6000)), (2, '');
UPDATE bag SET v = d.v FROM doc d WHERE a = 2;

-- case: a row of an inherited table gets a compressed value of another method
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, v text COMPRESSION lz4);
CREATE TABLE base (id int PRIMARY KEY, v text COMPRESSION pglz);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (base);
CREATE INDEX ON child (v);
INSERT INTO doc VALUES (1, repeat('x', 6000));
INSERT INTO child SELECT id, v || '' FROM doc;
INSERT INTO child SELECT i, v || i FROM doc, generate_series(2, 9) i;
UPDATE child SET v = d.v FROM doc d WHERE child.id = 9;

-- case: partitions compress otherwise than each other
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, v text COMPRESSION lz4);
CREATE TABLE found (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE found_1 PARTITION OF found FOR VALUES FROM (0) TO (10);
CREATE TABLE found_2 PARTITION OF found FOR VALUES FROM (10) TO (20);
ALTER TABLE found_1 ALTER v SET COMPRESSION lz4;
ALTER TABLE found_2 ALTER v SET COMPRESSION pglz;
CREATE INDEX ON found (v);
INSERT INTO doc VALUES (1, repeat('x', 6000));
INSERT INTO found SELECT 10, v || '' FROM doc;
INSERT INTO found SELECT 1, v FROM doc;

-- case: values of one row need one method each
-- tables: doc
-- refused
CREATE TABLE doc (id int PRIMARY KEY, v text COMPRESSION lz4, w text COMPRESSION pglz);
CREATE TABLE found (id int PRIMARY KEY, v text, w text);
CREATE INDEX ON found (v);
CREATE INDEX ON found (w);
INSERT INTO doc VALUES (1, repeat('x', 6000), repeat('y', 6000));
INSERT INTO found SELECT id, v, '' FROM doc;
INSERT INTO found SELECT 2, v, w FROM doc;

-- case: what was compressed before the column's method changed stays
-- tables: doc, bag, child
CREATE TABLE doc (id int PRIMARY KEY, n int, v text COMPRESSION pglz);
CREATE INDEX ON doc (v);
CREATE TABLE bag (a int, v text COMPRESSION pglz);
CREATE INDEX ON bag (v);
CREATE TABLE base (id int PRIMARY KEY, n int, v text COMPRESSION pglz);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (base);
CREATE INDEX ON child (v);
INSERT INTO doc SELECT i, i, repeat('x', 6000 + i) FROM generate_series(1, 9) i;
INSERT INTO child SELECT i, i, repeat('x', 6000 + i) FROM generate_series(1, 9) i;
INSERT INTO bag SELECT i, repeat('x', 6000 + i) FROM generate_series(1, 9) i;
ALTER TABLE doc ALTER v SET COMPRESSION lz4;
ALTER TABLE child ALTER v SET COMPRESSION lz4;
UPDATE doc SET n = 0 WHERE id = 1;
UPDATE doc SET n = 1 WHERE id > 1;
UPDATE doc SET n = 2, v = v || 'y' WHERE id > 5;
UPDATE doc SET id = 20, v = v || 'z' WHERE id = 9;
UPDATE child SET n = 0 WHERE id = 1;
UPDATE child SET n = 1 WHERE id > 1;
UPDATE child SET n = 2, v = v || 'y' WHERE id > 5;
UPDATE bag SET a = 0 WHERE a < 3;
DELETE FROM doc WHERE id = 2;
