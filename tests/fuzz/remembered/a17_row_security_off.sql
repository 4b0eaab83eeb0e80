-- case: a17 what every script of pg_dump says
-- on n1
CREATE TABLE rp (id int PRIMARY KEY);
CREATE TABLE rc (id int PRIMARY KEY, pid int REFERENCES rp);
INSERT INTO rp VALUES (1), (2);
SET row_security = off;
DELETE FROM rp WHERE id = 1;
