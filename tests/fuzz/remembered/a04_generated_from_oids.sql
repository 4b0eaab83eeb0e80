-- case: a04 a generated column over tableoid
-- on n1
CREATE TABLE tgo (id int PRIMARY KEY, seq_o int8 GENERATED ALWAYS AS (tableoid::int8) STORED);
INSERT INTO tgo VALUES (1);
-- case: a04 a generated column over hashenum
-- on n1
CREATE TYPE en AS ENUM ('x', 'y');
CREATE TABLE the (id int PRIMARY KEY, e en, seq_h int GENERATED ALWAYS AS (hashenum(e)) STORED);
INSERT INTO the VALUES (1, 'x');
