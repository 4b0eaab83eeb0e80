-- Transactions whose rows and commands are captured in an order that is not the obvious one. Each line that ends in
-- a semicolon is a message of its own, on the first node. "tables": what is compared afterwards. "refused": the
-- statement before it must fail with 0A000, and what follows rolls back.

-- case: a table that is published, whose rows nobody may delete, is emptied and filled
-- tables: pb
CREATE TABLE pb (a int NOT NULL UNIQUE, b int);
INSERT INTO pb VALUES (1, 0), (2, 0);
CREATE PUBLICATION border_pb FOR TABLE pb;
BEGIN;
TRUNCATE pb;
INSERT INTO pb VALUES (1, 1);
COMMIT;
BEGIN;
INSERT INTO pb VALUES (3, 0);
TRUNCATE pb;
INSERT INTO pb VALUES (3, 1);
COMMIT;
DROP PUBLICATION border_pb;

-- case: a command rolled back to a savepoint behind a row touched twice
-- tables: s_a
BEGIN;
CREATE TABLE s_a (id int PRIMARY KEY, v int);
INSERT INTO s_a VALUES (1, 1);
UPDATE s_a SET v = 2 WHERE id = 1;
SAVEPOINT s;
CREATE TABLE s_b (id int);
ROLLBACK TO s;
COMMIT;

-- case: a command caught by EXCEPTION behind a row touched twice
-- tables: e_a
BEGIN;
CREATE TABLE e_a (id int PRIMARY KEY, v int);
INSERT INTO e_a VALUES (1, 1);
UPDATE e_a SET v = 2 WHERE id = 1;
DO $$ BEGIN CREATE TABLE e_a (id int); EXCEPTION WHEN duplicate_table THEN NULL; END $$;
COMMIT;

-- case: the same in one message
-- tables: m_a
BEGIN; CREATE TABLE m_a (id int PRIMARY KEY, v int); INSERT INTO m_a VALUES (1, 1); UPDATE m_a SET v = 2 WHERE id = 1; DO $$ BEGIN CREATE TABLE m_a (id int); EXCEPTION WHEN duplicate_table THEN NULL; END $$; COMMIT;

-- case: a key that its collation calls equal is deleted and inserted, beside a domain
-- tables: nc
CREATE COLLATION nc_ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE DOMAIN nc_small AS int CHECK (VALUE < 100);
CREATE TABLE nc (k text COLLATE nc_ci PRIMARY KEY, v nc_small);
INSERT INTO nc VALUES ('a', 1);
BEGIN;
DELETE FROM nc WHERE k = 'a';
INSERT INTO nc VALUES ('A', 2);
COMMIT;

-- case: a command rolled back behind a rewrite and a row touched twice
-- tables: cents
CREATE TABLE cents (id int PRIMARY KEY, price int);
INSERT INTO cents VALUES (1, 3);
BEGIN;
ALTER TABLE cents ALTER price TYPE bigint USING price * 100;
INSERT INTO cents VALUES (2, 500);
UPDATE cents SET price = 600 WHERE id = 2;
SAVEPOINT s;
CREATE TABLE cents_x (id int);
ROLLBACK TO s;
COMMIT;

-- case: a local table becomes replicated, and a command is rolled back
-- tables: sr
CREATE TABLE sr (id int PRIMARY KEY, v int);
SELECT pgherd.set_local('sr');
BEGIN;
SELECT pgherd.set_replicated('sr');
INSERT INTO sr VALUES (1, 1);
UPDATE sr SET v = 2;
SAVEPOINT s;
CREATE TABLE srx (id int);
ROLLBACK TO s;
COMMIT;

-- case: savepoints around commands and rows, rolled back and released
-- tables: sv, sv_c
BEGIN;
CREATE TABLE sv (id int PRIMARY KEY, v int);
INSERT INTO sv SELECT g, 0 FROM generate_series(1, 5) g;
SAVEPOINT a;
UPDATE sv SET v = 1 WHERE id < 3;
SAVEPOINT b;
CREATE TABLE sv_c (id int PRIMARY KEY);
INSERT INTO sv_c VALUES (1);
ROLLBACK TO b;
UPDATE sv SET v = 2 WHERE id = 1;
CREATE TABLE sv_c (id int PRIMARY KEY, w text);
INSERT INTO sv_c VALUES (1, 'x');
RELEASE a;
UPDATE sv_c SET w = 'y';
SAVEPOINT c;
ALTER TABLE sv_c ADD COLUMN z int;
UPDATE sv_c SET z = 1;
ROLLBACK TO c;
DELETE FROM sv WHERE id = 5;
COMMIT;

-- case: a temporary table behind a row touched twice
-- tables: tt
CREATE TABLE tt (id int PRIMARY KEY, v int);
BEGIN;
INSERT INTO tt VALUES (1, 1), (2, 2);
UPDATE tt SET v = 2;
CREATE TEMP TABLE tt_local (id int);
UPDATE tt SET v = 3 WHERE id = 1;
DELETE FROM tt WHERE id = 2;
DROP TABLE tt_local;
COMMIT;

-- case: an extension's script and rows touched twice
-- tables: ex
BEGIN;
CREATE TABLE ex (id int PRIMARY KEY, v int);
INSERT INTO ex VALUES (1, 1);
UPDATE ex SET v = 2;
CREATE EXTENSION IF NOT EXISTS fuzzystrmatch;
UPDATE ex SET v = 3;
CREATE INDEX ON ex (v);
UPDATE ex SET v = 4;
COMMIT;

-- case: a tenant is provisioned by a trigger after its row
-- tables: ten, ten_1, ten_2, ten_3
CREATE TABLE ten (id int PRIMARY KEY, prov bool DEFAULT false);
CREATE FUNCTION ten_new() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE ten SET prov = true WHERE id = NEW.id; EXECUTE format('CREATE TABLE ten_%s (id serial PRIMARY KEY, tenant int REFERENCES ten, note text)', NEW.id); EXECUTE format('INSERT INTO ten_%s (tenant, note) VALUES (%s, ''first''), (%s, ''second'')', NEW.id, NEW.id, NEW.id); EXECUTE format('UPDATE ten_%s SET note = ''changed'' WHERE note = ''second''', NEW.id); RETURN NULL; END $$;
CREATE TRIGGER ten_new AFTER INSERT ON ten FOR EACH ROW EXECUTE FUNCTION ten_new();
INSERT INTO ten VALUES (1);
INSERT INTO ten VALUES (2), (3);

-- case: a tenant is provisioned by a trigger before its row
-- tables: tenb, tenb_1, tenb_2, tenb_log
CREATE TABLE tenb (id int PRIMARY KEY, prov bool DEFAULT false);
CREATE TABLE tenb_log (id int PRIMARY KEY);
CREATE FUNCTION tenb_new() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('CREATE TABLE tenb_%s (id int PRIMARY KEY, note text)', NEW.id); EXECUTE format('INSERT INTO tenb_%s VALUES (%s)', NEW.id, NEW.id); INSERT INTO tenb_log VALUES (NEW.id); NEW.prov := true; RETURN NEW; END $$;
CREATE TRIGGER tenb_new BEFORE INSERT ON tenb FOR EACH ROW EXECUTE FUNCTION tenb_new();
INSERT INTO tenb VALUES (1), (2);
BEGIN;
INSERT INTO tenb VALUES (3);
UPDATE tenb SET prov = false WHERE id = 3;
CREATE TABLE tenb_after (id int PRIMARY KEY);
DELETE FROM tenb WHERE id = 3;
COMMIT;

-- case: schemas, views, functions, sequences and grants for a tenant
-- tables: tens, tens_1.t
CREATE TABLE tens (id int PRIMARY KEY);
CREATE FUNCTION tens_new() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('CREATE SCHEMA tens_%s', NEW.id); EXECUTE format('CREATE TABLE tens_%1$s.t (id int PRIMARY KEY, v int)', NEW.id); EXECUTE format('CREATE INDEX ON tens_%1$s.t (v)', NEW.id); EXECUTE format('CREATE SEQUENCE tens_%1$s.q', NEW.id); EXECUTE format('CREATE VIEW tens_%1$s.w AS SELECT * FROM tens_%1$s.t', NEW.id); EXECUTE format('GRANT SELECT ON tens_%1$s.t TO PUBLIC', NEW.id); EXECUTE format('COMMENT ON TABLE tens_%1$s.t IS ''x''', NEW.id); EXECUTE format('INSERT INTO tens_%1$s.t VALUES (1, 1)', NEW.id); RETURN NULL; END $$;
CREATE TRIGGER tens_new AFTER INSERT ON tens FOR EACH ROW EXECUTE FUNCTION tens_new();
INSERT INTO tens VALUES (1);
DROP SCHEMA tens_1 CASCADE;
DELETE FROM tens;
INSERT INTO tens VALUES (1);

-- case: setval in a trigger
-- tables: sv_t
CREATE SEQUENCE sv_q;
CREATE TABLE sv_t (id int PRIMARY KEY, v int);
CREATE FUNCTION sv_t() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE sv_t SET v = 7 WHERE id = NEW.id; PERFORM pgherd.setval('sv_q', 100); RETURN NULL; END $$;
CREATE TRIGGER sv_t AFTER INSERT ON sv_t FOR EACH ROW EXECUTE FUNCTION sv_t();
INSERT INTO sv_t VALUES (1);
BEGIN;
INSERT INTO sv_t VALUES (2);
UPDATE sv_t SET v = 8;
SELECT pgherd.setval('sv_q', 200);
UPDATE sv_t SET v = 9 WHERE id = 2;
COMMIT;

-- case: a table made while a row is deleted that was touched before
-- tables: del
CREATE TABLE del (id int PRIMARY KEY, v int);
INSERT INTO del VALUES (1, 0), (2, 0);
CREATE FUNCTION del_t() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('CREATE TABLE del_%s (id int PRIMARY KEY)', OLD.id); RETURN NULL; END $$;
CREATE TRIGGER del_t AFTER DELETE ON del FOR EACH ROW EXECUTE FUNCTION del_t();
BEGIN;
UPDATE del SET v = 1 WHERE id = 1;
UPDATE del SET v = 2 WHERE id = 1;
DELETE FROM del WHERE id = 1;
COMMIT;

-- case: a foreign key that a trigger adds between tables it writes
-- tables: pp, cc
CREATE TABLE pp (id int PRIMARY KEY);
CREATE TABLE cc (id int PRIMARY KEY, pid int);
INSERT INTO cc VALUES (1, 1);
CREATE FUNCTION pp_t() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ALTER TABLE cc ADD FOREIGN KEY (pid) REFERENCES pp; RETURN NULL; END $$;
CREATE TRIGGER pp_t AFTER INSERT ON pp FOR EACH ROW EXECUTE FUNCTION pp_t();
INSERT INTO pp VALUES (1);
-- refused

-- case: a unique value is taken over in a trigger with a request
-- tables: uq2
CREATE SEQUENCE uq_q;
CREATE TABLE uq2 (id int PRIMARY KEY, u int UNIQUE);
INSERT INTO uq2 VALUES (1, 1);
CREATE FUNCTION uq_t() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO uq2 VALUES (OLD.id + 1, OLD.u); PERFORM pgherd.setval('uq_q', 100); RETURN NULL; END $$;
CREATE TRIGGER uq_t AFTER DELETE ON uq2 FOR EACH ROW EXECUTE FUNCTION uq_t();
DELETE FROM uq2;

-- case: a function in INSERT ... SELECT makes tables
-- tables: fs, fs_1, fs_2
CREATE TABLE fs (id int PRIMARY KEY, v int);
CREATE FUNCTION fs_make(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('CREATE TABLE fs_%s (id int PRIMARY KEY)', n); EXECUTE format('INSERT INTO fs_%s VALUES (1)', n); UPDATE fs SET v = 5 WHERE id = n - 1; RETURN n; END $$;
INSERT INTO fs VALUES (0, 0);
INSERT INTO fs SELECT fs_make(g), 0 FROM generate_series(1, 2) g;

-- case: a function in a data-modifying WITH alters the table that it writes
-- tables: wi, wi_o
CREATE TABLE wi (id int PRIMARY KEY, v int);
CREATE TABLE wi_o (id int PRIMARY KEY);
CREATE FUNCTION wi_f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN ALTER TABLE wi_o ADD COLUMN IF NOT EXISTS z int; RETURN 1; END $$;
BEGIN;
INSERT INTO wi_o VALUES (1);
WITH i AS (INSERT INTO wi VALUES (1, 1) RETURNING id) SELECT wi_f(), id FROM i;
-- refused

-- case: a function in a data-modifying WITH alters another table
-- tables: wa, wa_o
CREATE TABLE wa (id int PRIMARY KEY, v int);
CREATE TABLE wa_o (id int PRIMARY KEY);
CREATE FUNCTION wa_f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN ALTER TABLE wa_o ADD COLUMN IF NOT EXISTS z int; RETURN 1; END $$;
BEGIN;
WITH i AS (INSERT INTO wa VALUES (1, 1) RETURNING id) SELECT wa_f(), id FROM i;
INSERT INTO wa_o VALUES (1, 2);
UPDATE wa SET v = 2;
ALTER TABLE wa ADD COLUMN w int DEFAULT 3;
UPDATE wa SET w = 4;
COMMIT;

-- case: an ordinary migration in a block
-- tables: mi, mi_x, mi_y
CREATE TABLE mi (id int PRIMARY KEY, v int);
INSERT INTO mi SELECT g, g FROM generate_series(1, 5) g;
DO $$ BEGIN CREATE TABLE mi_x (id int PRIMARY KEY, v int); INSERT INTO mi_x SELECT * FROM mi; UPDATE mi_x SET v = v + 1; ALTER TABLE mi_x ADD COLUMN w text DEFAULT 'w'; UPDATE mi_x SET w = 'x' WHERE id = 1; ALTER TABLE mi_x DROP COLUMN v; DELETE FROM mi_x WHERE id = 2; UPDATE mi SET v = 0; ALTER TABLE mi ALTER v TYPE bigint; UPDATE mi SET v = 1 WHERE id < 3; CREATE TABLE mi_y AS SELECT * FROM mi; ALTER TABLE mi_y ADD PRIMARY KEY (id); UPDATE mi_y SET v = 9; END $$;

-- case: a loop over a cursor that makes tables
-- tables: lo, lo_1, lo_2, lo_3
CREATE TABLE lo (id int PRIMARY KEY, done bool DEFAULT false);
INSERT INTO lo SELECT g FROM generate_series(1, 3) g;
DO $$ DECLARE r record; BEGIN FOR r IN SELECT * FROM lo ORDER BY id LOOP EXECUTE format('CREATE TABLE lo_%s (id int PRIMARY KEY, v int)', r.id); EXECUTE format('INSERT INTO lo_%s VALUES (1, 1)', r.id); EXECUTE format('UPDATE lo_%s SET v = 2', r.id); UPDATE lo SET done = true WHERE id = r.id; END LOOP; END $$;

-- case: a procedure that alters what it fills and commits
-- tables: pr
CREATE TABLE pr (id int PRIMARY KEY);
CREATE PROCEDURE pr_p() LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..3 LOOP INSERT INTO pr (id) VALUES (i); EXECUTE format('ALTER TABLE pr ADD COLUMN c%s int', i); EXECUTE format('UPDATE pr SET c%s = %s', i, i); COMMIT; END LOOP; END $$;
CALL pr_p();

-- case: a materialized view refreshed by a trigger behind ours
-- tables: mv_t, mv_v
CREATE TABLE mv_t (id int PRIMARY KEY);
CREATE MATERIALIZED VIEW mv_v AS SELECT count(*) AS n, max(id) AS id FROM mv_t;
CREATE FUNCTION mv_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN REFRESH MATERIALIZED VIEW mv_v; RETURN NULL; END $$;
CREATE TRIGGER refresh_mv AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON mv_t FOR EACH STATEMENT EXECUTE FUNCTION mv_f();
INSERT INTO mv_t VALUES (1), (2);
INSERT INTO mv_t VALUES (2), (3) ON CONFLICT (id) DO NOTHING;
INSERT INTO mv_t SELECT 9 WHERE false;
UPDATE mv_t SET id = 5 WHERE id = 3;
DELETE FROM mv_t WHERE id = 1;
BEGIN;
TRUNCATE mv_t;
INSERT INTO mv_t VALUES (7);
UPDATE mv_t SET id = 8;
COMMIT;

-- case: a materialized view refreshed by a trigger before ours
-- tables: mb_t, mb_v
CREATE TABLE mb_t (id int PRIMARY KEY);
CREATE MATERIALIZED VIEW mb_v AS SELECT count(*) AS n FROM mb_t;
CREATE FUNCTION mb_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN REFRESH MATERIALIZED VIEW mb_v; RETURN NULL; END $$;
CREATE TRIGGER mv_refresh AFTER INSERT ON mb_t FOR EACH STATEMENT EXECUTE FUNCTION mb_f();
INSERT INTO mb_t VALUES (1);
-- refused

-- case: a materialized view refreshed by a trigger of a row
-- tables: mr_t, mr_v
CREATE TABLE mr_t (id int PRIMARY KEY);
CREATE MATERIALIZED VIEW mr_v AS SELECT count(*) AS n FROM mr_t;
CREATE FUNCTION mr_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN REFRESH MATERIALIZED VIEW mr_v; RETURN NULL; END $$;
CREATE TRIGGER z AFTER INSERT ON mr_t FOR EACH ROW EXECUTE FUNCTION mr_f();
INSERT INTO mr_t VALUES (1);
-- refused

-- case: a materialized view of a table that the statement cascades to
-- tables: gp, ch, ch_v
CREATE TABLE gp (id int PRIMARY KEY);
CREATE TABLE ch (id int PRIMARY KEY, p int REFERENCES gp ON DELETE CASCADE);
INSERT INTO gp VALUES (1), (2);
INSERT INTO ch VALUES (1, 1), (2, 2);
CREATE MATERIALIZED VIEW ch_v AS SELECT count(*) AS n FROM ch;
CREATE FUNCTION gp_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN REFRESH MATERIALIZED VIEW ch_v; RETURN NULL; END $$;
CREATE TRIGGER z AFTER DELETE ON gp FOR EACH STATEMENT EXECUTE FUNCTION gp_f();
DELETE FROM gp WHERE id = 1;
-- refused

-- case: partitions and a statement's trigger that refreshes
-- tables: pa, pa_v
CREATE TABLE pa (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE pa_1 PARTITION OF pa FOR VALUES FROM (0) TO (10);
CREATE TABLE pa_2 PARTITION OF pa FOR VALUES FROM (10) TO (20);
CREATE MATERIALIZED VIEW pa_v AS SELECT sum(id) AS n FROM pa;
CREATE FUNCTION pa_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN REFRESH MATERIALIZED VIEW pa_v; RETURN NULL; END $$;
CREATE TRIGGER z AFTER INSERT OR UPDATE OR DELETE ON pa FOR EACH STATEMENT EXECUTE FUNCTION pa_f();
INSERT INTO pa VALUES (1), (11);
UPDATE pa SET id = id + 9 WHERE id = 1;
INSERT INTO pa_1 VALUES (3);
DELETE FROM pa WHERE id = 11;

-- case: a table made local while a statement changes rows
-- tables: ml
CREATE TABLE ml (id int PRIMARY KEY);
CREATE FUNCTION ml_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pgherd.set_local('ml'); RETURN NULL; END $$;
CREATE TRIGGER z AFTER INSERT ON ml FOR EACH ROW EXECUTE FUNCTION ml_f();
INSERT INTO ml VALUES (1);
-- refused

-- case: a deferred primary key violated around a command
-- tables: dp
CREATE TABLE dp (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text);
INSERT INTO dp VALUES (1, 'x');
BEGIN;
INSERT INTO dp VALUES (1, 'a');
CREATE TABLE dp2 (id int PRIMARY KEY);
-- refused

-- case: a deferred primary key that holds around a command
-- tables: dh
CREATE TABLE dh (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text);
INSERT INTO dh VALUES (1, 'x'), (2, 'y');
BEGIN;
INSERT INTO dh VALUES (1, 'a');
DELETE FROM dh WHERE v = 'x';
CREATE TABLE dh2 (id int PRIMARY KEY);
UPDATE dh SET id = 3 - id;
UPDATE dh SET v = v || 'z';
CREATE TEMP TABLE dh3 (id int);
UPDATE dh SET id = id + 1;
COMMIT;

-- case: a primary key with INCLUDE
-- tables: inc
CREATE TABLE inc (id int, v text, w int, PRIMARY KEY (id) INCLUDE (v));
BEGIN;
INSERT INTO inc VALUES (1, 'a', 1), (2, 'b', 2);
UPDATE inc SET v = 'b' WHERE id = 1;
UPDATE inc SET v = 'c', w = 3 WHERE id = 1;
COMMIT;
UPDATE inc SET v = 'd' WHERE id = 2;
UPDATE inc SET id = id + 10;
DELETE FROM inc WHERE v = 'd';

-- case: unique keys of every kind, rows touched twice and keys swapped
-- tables: uk
CREATE TABLE uk (id int PRIMARY KEY, a int UNIQUE, b int, c text, d int UNIQUE NULLS NOT DISTINCT, e int UNIQUE DEFERRABLE INITIALLY DEFERRED, r int4range, live bool DEFAULT true, EXCLUDE USING gist (r WITH &&));
CREATE UNIQUE INDEX ON uk (b) INCLUDE (c);
CREATE UNIQUE INDEX ON uk (lower(c));
CREATE UNIQUE INDEX ON uk (b, a) WHERE live;
INSERT INTO uk SELECT g, g, g, 'c' || g, g, g, int4range(g * 10, g * 10 + 5) FROM generate_series(1, 6) g;
BEGIN;
UPDATE uk SET e = 7 - e;
UPDATE uk SET a = a + 100;
UPDATE uk SET a = 107 - (a - 100) + 200;
UPDATE uk SET b = b + 10, c = upper(c) WHERE id < 4;
UPDATE uk SET b = b + 5 WHERE id < 4;
UPDATE uk SET d = NULL WHERE id = 1;
UPDATE uk SET d = 1 WHERE id = 2;
UPDATE uk SET r = NULL WHERE id = 1;
UPDATE uk SET r = int4range(10, 15) WHERE id = 2;
UPDATE uk SET live = false WHERE id = 3;
DELETE FROM uk WHERE id = 6;
INSERT INTO uk VALUES (6, 201, 33, 'C6', 66, 66, int4range(60, 65));
COMMIT;
UPDATE uk SET e = 100 - e;
UPDATE uk SET id = id + 100;

-- case: columns with the names of our parameters
-- tables: exam
CREATE TABLE exam (id int PRIMARY KEY, writing int, erasing int, recs text, tab text, x int, v_xid int, v_base int, v_checked int, chunk int, k int, s int, n int, o int, pk int, r int, m int);
BEGIN;
INSERT INTO exam (id, writing, erasing, recs) VALUES (1, 1, 1, 'r');
UPDATE exam SET writing = 2, erasing = 3, tab = 'q', x = 1, v_xid = 2, v_base = 3, v_checked = 4, chunk = 5, k = 1, s = 2, n = 3, o = 4, pk = 5, r = 6, m = 7;
COMMIT;
INSERT INTO exam (id, writing) SELECT g, g FROM generate_series(2, 5) g;
UPDATE exam SET erasing = writing WHERE id > 2;

-- case: the key too has such names
-- tables: exak
CREATE TABLE exak (writing int, recs int, tab int, erasing int, PRIMARY KEY (writing, erasing, tab));
BEGIN;
INSERT INTO exak VALUES (1, 1, 1, 1), (2, 2, 2, 2);
UPDATE exak SET recs = 3;
DELETE FROM exak WHERE writing = 2;
COMMIT;

-- case: row security switched off
-- tables: rs_p, rs_c
CREATE TABLE rs_p (id int PRIMARY KEY);
CREATE TABLE rs_c (id int PRIMARY KEY, p int REFERENCES rs_p);
INSERT INTO rs_p VALUES (1), (2);
SET row_security = off;
DELETE FROM rs_p WHERE id = 1;
SELECT pgherd.last_gid();
UPDATE rs_p SET id = 3;
BEGIN;
INSERT INTO rs_p VALUES (4);
UPDATE rs_p SET id = 5 WHERE id = 4;
CREATE TABLE rs_x (id int PRIMARY KEY);
COMMIT;
RESET row_security;

-- case: partitions detached and attached beside rows
-- tables: pt
CREATE TABLE pt (id int, k text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE pt_x PARTITION OF pt FOR VALUES IN ('x');
CREATE TABLE pt_d PARTITION OF pt DEFAULT;
BEGIN;
INSERT INTO pt SELECT g, CASE WHEN g % 2 = 0 THEN 'x' ELSE 'y' END FROM generate_series(1, 20) g;
ALTER TABLE pt DETACH PARTITION pt_d;
INSERT INTO pt_d VALUES (99, 'z');
ALTER TABLE pt ATTACH PARTITION pt_d DEFAULT;
COMMIT;

-- case: the same with rows touched twice
-- tables: pu
CREATE TABLE pu (id int, k text, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE pu_x PARTITION OF pu FOR VALUES IN ('x');
CREATE TABLE pu_d PARTITION OF pu DEFAULT;
BEGIN;
INSERT INTO pu SELECT g, CASE WHEN g % 2 = 0 THEN 'x' ELSE 'y' END FROM generate_series(1, 20) g;
UPDATE pu SET v = 1 WHERE k = 'y';
ALTER TABLE pu DETACH PARTITION pu_d;
INSERT INTO pu_d VALUES (99, 'z');
UPDATE pu_d SET v = 2;
UPDATE pu SET v = 3;
ALTER TABLE pu ATTACH PARTITION pu_d DEFAULT;
UPDATE pu SET v = v + 1;
COMMIT;

-- case: a detached partition is a table of its own
-- tables: pd, pd_d, pd_1
CREATE TABLE pd (id int, k text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE pd_1 PARTITION OF pd FOR VALUES IN ('x');
CREATE TABLE pd_d PARTITION OF pd DEFAULT;
ALTER TABLE pd DETACH PARTITION pd_d;
INSERT INTO pd_d VALUES (1, 'x');
ALTER TABLE pd DETACH PARTITION pd_1;
INSERT INTO pd_1 VALUES (1, 'z');

-- case: a unique index over the whole row
-- tables: wr
CREATE TABLE wr (id int PRIMARY KEY, a int, b text);
CREATE UNIQUE INDEX ON wr (id, num_nulls(wr));
CREATE UNIQUE INDEX ON wr (b) WHERE wr IS NOT NULL;
INSERT INTO wr VALUES (1, 1, 'a'), (2, 2, 'b');
UPDATE wr SET a = 3 WHERE id = 1;
BEGIN;
UPDATE wr SET b = b || 'x';
UPDATE wr SET b = 'y' WHERE id = 2;
COMMIT;

-- case: a circle that cannot be read again
-- tables: rc
-- refused 22P02
CREATE TABLE rc (id int PRIMARY KEY, c circle, i interval);
INSERT INTO rc VALUES (1, circle(point(0, 0), 1), interval '-1 mon 3 d'), (2, NULL, interval '1 us');
UPDATE rc SET c = circle(point(0, 0), -1) WHERE id = 2;

-- case: circles in an array of a composite that cannot be read again
-- tables: rca
-- refused 22P02
CREATE TYPE rca_t AS (n int, c circle);
CREATE TABLE rca (id int PRIMARY KEY, c rca_t[]);
INSERT INTO rca VALUES (1, ARRAY[ROW(1, circle(point(0, 0), 1))::rca_t]);
INSERT INTO rca VALUES (2, ARRAY[ROW(1, circle(point(0, 0), -1))::rca_t]);

-- case: an interval that cannot be read again
-- tables: ri
-- refused 22007
CREATE TABLE ri (id int PRIMARY KEY, i interval);
INSERT INTO ri VALUES (1, interval '1 mon' + interval '-3 days' + interval '-5 us');
INSERT INTO ri VALUES (2, interval '-2147483648 mons' + interval '-2147483648 days' + interval '-9223372036854775808 us');

-- case: a time zone that is read as another
-- tables: rz
-- refused
CREATE TABLE rz (id int PRIMARY KEY, z timetz);
INSERT INTO rz VALUES (1, '10:00+05:30');
INSERT INTO rz VALUES (2, timezone(interval '400 hours', timetz '00:00+00'));

-- case: a materialized view that sums floats
-- tables: rf
-- refused
CREATE TABLE rf (id int PRIMARY KEY, v float8);
CREATE MATERIALIZED VIEW rf_v AS SELECT sum(v::numeric) AS s, max(v) AS m FROM rf;
CREATE MATERIALIZED VIEW rf_w AS SELECT sum(v) AS s FROM rf;

-- case: materialized views that have an order
-- tables: ro, ro_a, ro_b, ro_c, ro_d
CREATE TABLE ro (id int PRIMARY KEY, v int, t text);
INSERT INTO ro SELECT g, g % 3, g FROM generate_series(1, 20) g;
CREATE MATERIALIZED VIEW ro_a AS SELECT v, array_agg(t ORDER BY id) AS a, count(*), string_agg(DISTINCT t, ',') AS s FROM ro GROUP BY v;
CREATE MATERIALIZED VIEW ro_b AS SELECT * FROM ro ORDER BY id LIMIT 3;
CREATE MATERIALIZED VIEW ro_c AS SELECT id, row_number() OVER (ORDER BY id) AS n, lag(t) OVER (PARTITION BY v ORDER BY id) AS l FROM ro;
CREATE MATERIALIZED VIEW ro_d AS SELECT rank() OVER (ORDER BY v) AS r, jsonb_agg(v ORDER BY v) AS j FROM ro GROUP BY v;

-- case: a materialized view that lists rows as they lie
-- tables: ra
-- refused
CREATE TABLE ra (id int PRIMARY KEY, v int);
CREATE MATERIALIZED VIEW ra_v AS SELECT count(DISTINCT v), array_agg(v) FROM ra;

-- case: a materialized view that lists rows as they lie, inside a list that has an order
-- tables: rs
-- refused
CREATE TABLE rs (id int PRIMARY KEY, v int);
CREATE MATERIALIZED VIEW rs_v AS SELECT array_agg((SELECT string_agg(v::text, ',') FROM rs) ORDER BY id) FROM rs;

-- case: a materialized view of the first rows
-- tables: rl
-- refused
CREATE TABLE rl (id int PRIMARY KEY, v int);
CREATE MATERIALIZED VIEW rl_v AS SELECT * FROM (SELECT * FROM rl LIMIT 3) s ORDER BY id;

-- case: a materialized view that numbers rows as they lie
-- tables: rw
-- refused
CREATE TABLE rw (id int PRIMARY KEY, v int);
CREATE MATERIALIZED VIEW rw_v AS SELECT id, row_number() OVER () FROM rw;

-- case: XML that cannot be read again
-- tables: rx
-- refused 2200N
CREATE TABLE rx (id int PRIMARY KEY, x xml);
INSERT INTO rx VALUES (1, '<a/>'), (2, xmlconcat('<a/>', 'text'));
INSERT INTO rx VALUES (3, xmlconcat('<!DOCTYPE a><a/>', '<b/>'));

-- case: a value that cannot be read again in a new table
-- tables: rn
-- refused 22P02
CREATE TABLE rn (id int PRIMARY KEY);
CREATE TABLE rn_made AS SELECT 1 AS id, circle(point(0, 0), -1) AS c;

-- case: a NULL that a query puts into a domain which forbids it
-- tables: rd
-- refused 23502
CREATE DOMAIN rd_d AS int NOT NULL;
CREATE TABLE rd (id int PRIMARY KEY, a rd_d);
INSERT INTO rd VALUES (1, 1);
INSERT INTO rd VALUES (2, (SELECT a FROM rd WHERE false));

-- case: a NULL that an outer join puts into a domain which forbids it
-- tables: rj, rj_2
-- refused 23514
CREATE DOMAIN rj_d AS int CHECK (VALUE IS NOT NULL);
CREATE TABLE rj (id int PRIMARY KEY, a rj_d);
CREATE TABLE rj_2 (id int PRIMARY KEY, a rj_d);
INSERT INTO rj VALUES (1, 1);
INSERT INTO rj_2 SELECT g, t.a FROM generate_series(1, 2) g LEFT JOIN rj t ON t.id = g;

-- case: what a domain forbids only since these rows were there
-- tables: rv
-- refused 23514
CREATE DOMAIN rv_d AS int;
CREATE TABLE rv (id int PRIMARY KEY, a rv_d, b int);
INSERT INTO rv VALUES (1, -1, 1), (2, 1, 1);
ALTER DOMAIN rv_d ADD CHECK (VALUE > 0) NOT VALID;
BEGIN;
UPDATE rv SET b = 2;
UPDATE rv SET b = 3;
COMMIT;
UPDATE rv SET id = id + 10;

-- case: a comment on a trigger of a foreign key
-- tables: ct_p, ct_c
-- refused
CREATE TABLE ct_p (id int PRIMARY KEY);
CREATE TABLE ct_c (id int PRIMARY KEY, p int REFERENCES ct_p);
DO $$ BEGIN EXECUTE (SELECT format('COMMENT ON TRIGGER %I ON ct_c IS ''x''', tgname) FROM pg_trigger WHERE tgrelid = 'ct_c'::regclass AND tgisinternal LIMIT 1); END $$;

-- case: another name for a trigger of a foreign key
-- tables: cr_p, cr_c
-- refused
CREATE TABLE cr_p (id int PRIMARY KEY);
CREATE TABLE cr_c (id int PRIMARY KEY, p int REFERENCES cr_p);
DO $$ BEGIN EXECUTE (SELECT format('ALTER TRIGGER %I ON cr_c RENAME TO mine', tgname) FROM pg_trigger WHERE tgrelid = 'cr_c'::regclass AND tgisinternal LIMIT 1); END $$;

-- case: a temporary table inherits from a replicated one
-- tables: it
-- refused
CREATE TABLE it (id int PRIMARY KEY, v int);
INSERT INTO it VALUES (1, 1);
CREATE TEMP TABLE it_temp () INHERITS (it);

-- case: a temporary table is made the child of a replicated one
-- tables: ia
-- refused
CREATE TABLE ia (id int PRIMARY KEY, v int);
CREATE TEMP TABLE ia_temp (id int NOT NULL, v int);
ALTER TABLE ia_temp INHERIT ia;

-- case: keys of domains over enums, arrays and ranges
-- tables: de
CREATE TYPE de_e AS ENUM ('a', 'b', 'c');
CREATE DOMAIN de_de AS de_e;
CREATE DOMAIN de_da AS int[];
CREATE DOMAIN de_dr AS int4range CHECK (lower(VALUE) > 0);
CREATE TABLE de (e de_de, a de_da, r de_dr, v int, PRIMARY KEY (e, a, r));
INSERT INTO de VALUES ('a', '{1}', '[1,2)', 1), ('b', '{2}', '[3,4)', 2), ('c', '{}', '[5,)', 3);
BEGIN;
UPDATE de SET v = 4 WHERE v = 1;
UPDATE de SET v = v + 1;
DELETE FROM de WHERE v = 3;
UPDATE de SET e = 'b', v = 9 WHERE v = 4;
COMMIT;

-- case: truncation of partitioned tables that refer to each other
-- tables: tp, tq
CREATE TABLE tp (id int PRIMARY KEY, up int REFERENCES tp) PARTITION BY RANGE (id);
CREATE TABLE tp_0 PARTITION OF tp FOR VALUES FROM (0) TO (100);
CREATE TABLE tp_1 PARTITION OF tp FOR VALUES FROM (100) TO (200) PARTITION BY LIST (id);
CREATE TABLE tp_1d PARTITION OF tp_1 DEFAULT;
CREATE TABLE tq (id int PRIMARY KEY, tp int REFERENCES tp) PARTITION BY HASH (id);
INSERT INTO tp VALUES (1, NULL), (2, 1), (150, 2);
TRUNCATE tp, tq;
INSERT INTO tp VALUES (1, 1), (150, 1);
CREATE TABLE tq_0 PARTITION OF tq FOR VALUES WITH (MODULUS 1, REMAINDER 0);
BEGIN;
INSERT INTO tq VALUES (1, 150);
UPDATE tp SET up = 150 WHERE id = 1;
TRUNCATE tp CASCADE;
INSERT INTO tp VALUES (3, 3);
COMMIT;

-- case: truncation with restart between rows
-- tables: tr, tr_o
CREATE TABLE tr (id serial PRIMARY KEY, v int);
CREATE TABLE tr_o (id int PRIMARY KEY, v int);
BEGIN;
INSERT INTO tr (v) VALUES (1), (2);
INSERT INTO tr_o VALUES (1, 1);
TRUNCATE tr, tr_o RESTART IDENTITY;
INSERT INTO tr (v) VALUES (3);
INSERT INTO tr_o VALUES (1, 2);
UPDATE tr_o SET v = 3;
CREATE TABLE tr_x (id int PRIMARY KEY);
TRUNCATE tr RESTART IDENTITY;
COMMIT;

-- case: triggers of the user that call each other with commands
-- tables: na, nb, na_1, nb_1
CREATE TABLE na (id int PRIMARY KEY, v int);
CREATE TABLE nb (id int PRIMARY KEY, v int);
CREATE FUNCTION na_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO nb VALUES (NEW.id, 0); EXECUTE format('CREATE TABLE na_%s (id int PRIMARY KEY)', NEW.id); UPDATE na SET v = 2 WHERE id = NEW.id; RETURN NULL; END $$;
CREATE FUNCTION nb_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('CREATE TABLE nb_%s (id int PRIMARY KEY)', NEW.id); EXECUTE format('INSERT INTO nb_%s VALUES (1)', NEW.id); UPDATE nb SET v = 1 WHERE id = NEW.id; RETURN NULL; END $$;
CREATE TRIGGER na_f AFTER INSERT ON na FOR EACH ROW EXECUTE FUNCTION na_f();
CREATE TRIGGER nb_f AFTER INSERT ON nb FOR EACH ROW EXECUTE FUNCTION nb_f();
INSERT INTO na VALUES (1, 1);
