-- case: a12 a statement that PostgreSQL reads in another way than the parser
-- on n1
CREATE TABLE "system_user" (id int PRIMARY KEY, secret int);
DO $d$ BEGIN EXECUTE E'create table evil (id int primary key) --"\n inherits (system_user)'; END $d$;
INSERT INTO evil VALUES (1, 2);
