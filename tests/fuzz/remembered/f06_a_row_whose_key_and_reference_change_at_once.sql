-- case: f06 a row whose key and reference change at once
-- on n1
CREATE TABLE t (k int PRIMARY KEY, v int, p int REFERENCES t ON UPDATE CASCADE);
INSERT INTO t VALUES (1, 1, 1), (2, 2, 1), (3, 3, NULL);
-- on n2
UPDATE t SET k = 4 WHERE k = 1;
-- on n3
UPDATE t SET k = k + 10;
