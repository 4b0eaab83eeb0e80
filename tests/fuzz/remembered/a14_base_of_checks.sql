-- case: a14 MERGE that updates and deletes parents
-- on n1
CREATE TABLE mp (id int PRIMARY KEY);
CREATE TABLE mc (id int PRIMARY KEY, pid int REFERENCES mp);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2.5); RETURN NULL; END $$;
CREATE TRIGGER zz AFTER UPDATE ON mp FOR EACH ROW EXECUTE FUNCTION slow();
INSERT INTO mp VALUES (1), (2);
-- together
-- on n1 a at once
MERGE INTO mp USING (VALUES (1), (2)) v (id) ON mp.id = v.id
WHEN MATCHED AND mp.id = 1 THEN UPDATE SET id = 100 WHEN MATCHED THEN DELETE;
-- on n3
SELECT pg_sleep(0.7);
-- on n2 b
INSERT INTO mc VALUES (1, 1);
-- together
-- case: a14 a custom setting
-- on n1
CREATE TABLE lp (id int PRIMARY KEY);
CREATE TABLE lc (id int PRIMARY KEY, pid int REFERENCES lp);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2.5); RETURN NULL; END $$;
CREATE TRIGGER zz AFTER DELETE ON lp FOR EACH ROW EXECUTE FUNCTION slow();
INSERT INTO lp VALUES (1), (2);
-- together
-- on n1 a
SET pgherd.base_1 = '9223372036854775807';
-- on n1 a at once
DELETE FROM lp WHERE id = 1;
-- on n3
SELECT pg_sleep(0.7);
-- on n2 b
INSERT INTO lc VALUES (1, 1);
-- together
