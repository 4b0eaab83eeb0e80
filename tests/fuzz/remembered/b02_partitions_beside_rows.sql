-- case: b02 a default partition detached and attached again beside rows
-- on n1
CREATE TABLE pt (id int, k text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE pt_x PARTITION OF pt FOR VALUES IN ('x');
CREATE TABLE pt_d PARTITION OF pt DEFAULT;
BEGIN;
INSERT INTO pt SELECT g, CASE WHEN g % 2 = 0 THEN 'x' ELSE 'y' END FROM generate_series(1, 20) g;
ALTER TABLE pt DETACH PARTITION pt_d;
INSERT INTO pt_d VALUES (99, 'z');
ALTER TABLE pt ATTACH PARTITION pt_d DEFAULT;
COMMIT;
