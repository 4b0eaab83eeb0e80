-- case: a03 hash partitions by an enum
-- on n1
CREATE TYPE en AS ENUM ('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h');
CREATE TABLE he (id int, e en, PRIMARY KEY (id, e)) PARTITION BY HASH (e);
CREATE TABLE he_0 PARTITION OF he FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE he_1 PARTITION OF he FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO he SELECT g, (enum_range(NULL::en))[g] FROM generate_series(1, 8) g;
TRUNCATE he_0;
-- case: a03 hash partitions by an array of an enum
-- on n1
CREATE TYPE en AS ENUM ('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h');
CREATE TABLE he (id int, e en[], PRIMARY KEY (id, e)) PARTITION BY HASH (e);
CREATE TABLE he_0 PARTITION OF he FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE he_1 PARTITION OF he FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO he SELECT g, ARRAY[(enum_range(NULL::en))[g]] FROM generate_series(1, 8) g;
