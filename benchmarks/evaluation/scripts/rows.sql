\set id random(1, :rows)
UPDATE r:rows SET v = v + 1 WHERE id = :id;
