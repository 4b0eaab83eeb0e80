-- Kinds of statements that change rows. Each case is one message to the server.

-- case: insert of one row
INSERT INTO item VALUES (10, 'ten');

-- case: insert of many rows
INSERT INTO item SELECT i, 'm' || i FROM generate_series(10, 2500) i;

-- case: insert through a view
INSERT INTO items VALUES (10, 'view', 3);

-- case: insert returning into a statement
WITH i AS (INSERT INTO item VALUES (10, 'a') RETURNING *)
INSERT INTO log(what) SELECT code FROM i;

-- case: update of one row
UPDATE item SET n = n + 1 WHERE id = 3;

-- case: update of many rows
UPDATE item SET n = n * 2, note = NULL;

-- case: update that changes nothing
UPDATE item SET n = n;
UPDATE item SET n = 77 WHERE id = 1;

-- case: update of some rows that changes some
UPDATE item SET n = greatest(n, 5);

-- case: update from a join
UPDATE item SET note = v FROM parent p WHERE p.id = item.id;

-- case: update of a key
UPDATE item SET id = 100 WHERE id = 1;

-- case: update of a key and back
BEGIN;
UPDATE item SET id = 100 WHERE id = 1;
UPDATE item SET id = 1, n = 5 WHERE id = 100;
COMMIT;

-- case: update that shifts all keys
UPDATE swap SET id = id + 1;

-- case: update that shifts all keys down
UPDATE swap SET id = id - 1;

-- case: update of a unique column
UPDATE item SET code = 'new' WHERE id = 1;

-- case: rotation of a deferrable unique column
UPDATE swap SET u = CASE u WHEN 30 THEN 10 ELSE u + 10 END;

-- case: swap over two statements
BEGIN;
UPDATE swap SET u = 20 WHERE id = 1;
UPDATE swap SET u = 10 WHERE id = 2;
COMMIT;

-- case: delete of one row
DELETE FROM item WHERE id = 1;

-- case: delete of all rows
DELETE FROM item;

-- case: delete using
DELETE FROM item USING parent p WHERE p.id = item.id;

-- case: delete and insert of the same key
BEGIN;
DELETE FROM item WHERE id = 1;
INSERT INTO item VALUES (1, 'again');
COMMIT;

-- case: insert and delete in one transaction
BEGIN;
INSERT INTO item VALUES (10, 'gone');
DELETE FROM item WHERE id IN (10, 2);
COMMIT;

-- case: unique value handed from row to row
BEGIN;
DELETE FROM item WHERE id = 1;
UPDATE item SET code = 'c1' WHERE id = 2;
INSERT INTO item VALUES (11, 'c2');
COMMIT;

-- case: many updates of one row
BEGIN;
UPDATE item SET n = n + 1 WHERE id = 1;
UPDATE item SET note = 'a' WHERE id = 1;
UPDATE item SET n = n + 1;
COMMIT;

-- case: merge
MERGE INTO item t USING (VALUES (1, 'x'), (2, 'y'), (50, 'z')) s(id, c) ON t.id = s.id
    WHEN MATCHED AND s.id = 1 THEN DELETE
    WHEN MATCHED THEN UPDATE SET note = c
    WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.c);

-- case: on conflict do update
INSERT INTO item VALUES (1, 'one'), (60, 'sixty') ON CONFLICT (id) DO UPDATE SET note = 'again', code = EXCLUDED.code;

-- case: on conflict do nothing
INSERT INTO item VALUES (1, 'one'), (60, 'sixty') ON CONFLICT DO NOTHING;

-- case: writable CTEs
WITH d AS (DELETE FROM item WHERE id < 3 RETURNING *),
     u AS (UPDATE item SET n = -1 WHERE id > 7 RETURNING *),
     i AS (INSERT INTO item SELECT id + 70, note FROM d RETURNING *)
INSERT INTO log(what) SELECT id::text FROM i UNION ALL SELECT code FROM u;

-- case: on delete cascade, set null, set default
DELETE FROM parent WHERE id = 1;

-- case: on update cascade and set null
DELETE FROM fallback;
UPDATE parent SET id = 9 WHERE id = 1;

-- case: function with subtransactions
SELECT add_items(20, 30);

-- case: procedure that commits and rolls back
CALL commit_each(20, 30);

-- case: do block
DO $$ BEGIN INSERT INTO item VALUES (20, 'do'); COMMIT; DELETE FROM item WHERE id = 1; END $$;

-- case: trigger that updates the inserted row
INSERT INTO touched VALUES (3, 1, 'z'), (4, 500, 'w');

-- case: one row and its trigger
INSERT INTO touched VALUES (5, 1, 'z');

-- case: before trigger on update
UPDATE touched SET n = n + 1;

-- case: savepoint rolled back
BEGIN;
INSERT INTO item VALUES (10, 'keep');
SAVEPOINT s;
UPDATE item SET n = -5;
DELETE FROM item WHERE id = 2;
ROLLBACK TO s;
UPDATE item SET n = 7 WHERE id = 3;
COMMIT;

-- case: savepoint released, outer one rolled back
BEGIN;
SAVEPOINT a;
INSERT INTO item VALUES (10, 'x');
SAVEPOINT b;
INSERT INTO item VALUES (11, 'y');
RELEASE b;
ROLLBACK TO a;
INSERT INTO item VALUES (10, 'z');
COMMIT;

-- case: first write rolled back to a savepoint
BEGIN;
SAVEPOINT a;
INSERT INTO item VALUES (10, 'x');
ROLLBACK TO a;
DELETE FROM item WHERE id = 1;
COMMIT;

-- case: truncate
TRUNCATE item;

-- case: truncate cascade
TRUNCATE parent CASCADE;

-- case: truncate restart identity
INSERT INTO numbered(v) VALUES ('a'), ('b');
TRUNCATE numbered RESTART IDENTITY;
INSERT INTO numbered(v) VALUES ('c');

-- case: truncate and insert
BEGIN;
TRUNCATE item;
INSERT INTO item VALUES (1, 'after');
COMMIT;

-- case: insert, truncate, insert
BEGIN;
INSERT INTO item VALUES (10, 'x');
UPDATE item SET n = 3;
TRUNCATE item;
INSERT INTO item VALUES (1, 'c2');
COMMIT;

-- case: truncate and rows of another table
BEGIN;
DELETE FROM child;
TRUNCATE item, log;
UPDATE parent SET v = 'q';
COMMIT;

-- case: identity column
INSERT INTO numbered(v) VALUES ('a'), ('b');
UPDATE numbered SET v = 'c' WHERE v = 'a';
INSERT INTO numbered OVERRIDING SYSTEM VALUE VALUES (-1, 'mine');

-- case: several tables in one transaction
BEGIN;
INSERT INTO item VALUES (10, 'x');
INSERT INTO parent VALUES (10, 'y');
INSERT INTO child VALUES (10, 10);
UPDATE parent SET id = 11 WHERE id = 10;
DELETE FROM item WHERE id = 1;
COMMIT;

-- case: parent and child that swap
BEGIN;
UPDATE child SET pid = 3;
DELETE FROM parent WHERE id = 1;
INSERT INTO parent VALUES (1, 'back');
UPDATE child SET pid = 1 WHERE id = 2;
COMMIT;

-- case: cursor and where current of
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM item FOR UPDATE;
MOVE 2 FROM c;
UPDATE item SET n = 99 WHERE CURRENT OF c;
COMMIT;

-- case: select into a new value from a sequence
UPDATE item SET n = nextval('numbered_id_seq');

-- case: prepared statement
PREPARE p AS UPDATE item SET n = $1 WHERE id = $2;
EXECUTE p(5, 1);
EXECUTE p(6, 2);
