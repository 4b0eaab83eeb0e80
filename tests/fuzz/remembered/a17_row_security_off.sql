-- case: a17 what every script of pg_dump says
-- on n1
CREATE TABLE rp (id int PRIMARY KEY);
CREATE TABLE rc (id int PRIMARY KEY, pid int REFERENCES rp);
INSERT INTO rp VALUES (1), (2);
SET row_security = off;
DELETE FROM rp WHERE id = 1;
-- case: a17 the position of a member, asked by the same scripts
-- on n1
SET row_security = off;
SELECT pgherd.last_gid() IS NULL;
