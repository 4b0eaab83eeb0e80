-- case: f02 a foreign key between columns of type name
-- on n1
CREATE TABLE pn (k name PRIMARY KEY);
CREATE TABLE cn (id int PRIMARY KEY, p name REFERENCES pn);
INSERT INTO pn VALUES ('a'), ('b');
INSERT INTO cn VALUES (1, 'a');
UPDATE cn SET p = 'b';
