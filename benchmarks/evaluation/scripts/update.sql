\set t random(1, 10)
\set id random(1, :rows)
UPDATE u:t SET v = v + 1 WHERE id = :id;
