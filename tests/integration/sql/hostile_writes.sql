-- Plain writes, made where everything of ours is shadowed.
-- case: one row
INSERT INTO keyed VALUES ('a', 1, 1.0, now(), 'x', 1);
-- case: many rows
INSERT INTO keyed SELECT 'b' || i, i, i, pg_catalog.now(), 'y' || i, 2 FROM generate_series(1, 5) i;
-- case: update of a column
UPDATE keyed SET c = 2.0 WHERE e LIKE 'y%';
-- case: update of a key
UPDATE keyed SET e = 'z' || e;
-- case: twice in one transaction
BEGIN; UPDATE keyed SET c = 3.0; UPDATE keyed SET d = NULL; DELETE FROM keyed WHERE e = 'zx'; COMMIT;
-- case: parents
UPDATE plain SET v = 'p';
-- case: truncation
TRUNCATE keyed;
