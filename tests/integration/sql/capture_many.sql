-- Statements that change thousands of rows, of which one transition table does not fit into memory.

-- case: tables
CREATE TABLE many (id int PRIMARY KEY, n int, t text UNIQUE);
CREATE TABLE bare (n int);
CREATE TABLE loose (n int UNIQUE, t text);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent ON UPDATE CASCADE);

-- case: rows
SET work_mem = '64kB';
INSERT INTO many SELECT g, 0, 'text ' || g FROM generate_series(1, 3000) g;
INSERT INTO bare SELECT g % 7 FROM generate_series(1, 3000) g;
INSERT INTO loose SELECT nullif(g, g % 2), 'a' FROM generate_series(1, 3000) g;
INSERT INTO parent SELECT generate_series(1, 3000);
INSERT INTO child SELECT g, g FROM generate_series(1, 3000) g;

-- case: insert
INSERT INTO many SELECT g, 1, 'more ' || g FROM generate_series(3001, 7000) g;

-- case: insert of long rows
INSERT INTO many SELECT g, 1, g || repeat('x', 2000) FROM generate_series(3001, 6000) g;

-- case: insert of rows without a key
INSERT INTO bare SELECT g % 11 FROM generate_series(1, 4000) g;

-- case: insert of rows that have a unique value or none
INSERT INTO loose SELECT nullif(g, g % 3) + 3000, 'b' FROM generate_series(1, 4000) g;

-- case: update
UPDATE many SET n = id % 100;

-- case: update of some of them twice
UPDATE many SET n = 1;
UPDATE many SET n = 2 WHERE id > 1000;

-- case: update of one unique value among others
UPDATE many SET t = CASE WHEN id = 2500 THEN 'other' ELSE t END, n = 1;

-- case: update of rows without a key
UPDATE bare SET n = n + 1;

-- case: update of a key among others
UPDATE many SET id = id + 1 WHERE id > 2999;
UPDATE many SET n = 3;

-- case: update of keys, which others follow
UPDATE parent SET id = -id;

-- case: delete
DELETE FROM many;

-- case: delete of rows without a key
DELETE FROM bare;

-- case: delete of rows that have a unique value or none
DELETE FROM loose;

-- case: merge
MERGE INTO many m USING generate_series(2000, 5000) g ON m.id = g
 WHEN MATCHED THEN UPDATE SET n = 9 WHEN NOT MATCHED THEN INSERT VALUES (g, 0, 'm' || g);

-- case: insert on conflict
INSERT INTO many SELECT g, 1, 'c' || g FROM generate_series(1, 4000) g ON CONFLICT (id) DO UPDATE SET n = 8;
