-- case: f08 merge moves rows to another partition
-- on n1
CREATE TABLE p (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);
INSERT INTO p VALUES (1, 1), (2, 1), (3, 1);
-- on n2
MERGE INTO p USING (VALUES (1)) v (id) ON p.id = v.id WHEN MATCHED THEN UPDATE SET k = 2;
-- on n3
UPDATE p SET k = 2 WHERE id = 2;
