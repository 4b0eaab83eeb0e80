-- Ten updates, each of a random tuple of a random table: Postgres-R(SI) 6.2 and 6.3.
BEGIN;
\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
COMMIT;
