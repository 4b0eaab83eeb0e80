\set t random(1, 10)
\set id random(1, :rows)
SELECT v, filler FROM u:t WHERE id = :id;
