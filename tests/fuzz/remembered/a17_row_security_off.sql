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
-- case: a17 requests under the same setting
-- on n1
CREATE SEQUENCE sq;
CREATE TABLE rs (id int PRIMARY KEY);
SET row_security = off;
SELECT pgherd.setval('sq', 100);
SELECT pgherd.set_local('rs');
