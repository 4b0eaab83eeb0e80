-- case: a01 a command rolled back to a savepoint, after a row was touched twice
-- on n1
BEGIN;
CREATE TABLE ca (id int PRIMARY KEY, v int);
INSERT INTO ca VALUES (1, 1);
UPDATE ca SET v = 2 WHERE id = 1;
SAVEPOINT s;
CREATE TABLE cb (id int);
ROLLBACK TO s;
COMMIT;
-- case: a01 a command that fails inside EXCEPTION, after a row was touched twice
-- on n2
BEGIN;
CREATE TABLE ca (id int PRIMARY KEY, v int);
INSERT INTO ca VALUES (1, 1);
UPDATE ca SET v = 2 WHERE id = 1;
DO $$ BEGIN CREATE TABLE ca (id int); EXCEPTION WHEN duplicate_table THEN NULL; END $$;
COMMIT;
-- case: a01 rows of a new type before a command that is rolled back
-- on n1
CREATE TABLE cents (id int PRIMARY KEY, price int);
INSERT INTO cents VALUES (1, 3);
BEGIN;
ALTER TABLE cents ALTER price TYPE bigint USING price * 100;
INSERT INTO cents VALUES (2, 500);
UPDATE cents SET price = 600 WHERE id = 2;
SAVEPOINT s;
CREATE TABLE x (id int);
ROLLBACK TO s;
COMMIT;
-- case: a01 a table made replicated, and its rows before it
-- on n1
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
