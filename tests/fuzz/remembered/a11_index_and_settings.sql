-- case: a11 a unique index over the text of a float
-- on n1
CREATE TABLE fx (id int PRIMARY KEY, f float8);
CREATE UNIQUE INDEX ON fx ((f::text));
SET extra_float_digits = 1;
INSERT INTO fx VALUES (1, 0.1::float8 + 0.2);
SET extra_float_digits = 0;
INSERT INTO fx VALUES (2, 0.1::float8 + 0.2);
-- case: a11 a unique index over the text of bytes
-- on n1
CREATE TABLE fb (id int PRIMARY KEY, b bytea);
CREATE UNIQUE INDEX ON fb ((b::text));
SET bytea_output = 'hex';
INSERT INTO fb VALUES (1, '\x61');
SET bytea_output = 'escape';
INSERT INTO fb VALUES (2, '\x61');
