-- case: a15 a command while a deferrable key is violated
-- on n1
CREATE TABLE dp (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text);
INSERT INTO dp VALUES (1, 'x');
BEGIN;
INSERT INTO dp VALUES (1, 'a');
CREATE TABLE dp2 (id int PRIMARY KEY);
DELETE FROM dp WHERE v = 'x';
COMMIT;
