-- case: a06 tenant provisioning by a row trigger
-- on n1
CREATE TABLE ten (id int PRIMARY KEY, prov bool);
CREATE FUNCTION provide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE ten SET prov = true WHERE id = NEW.id;
    EXECUTE format('CREATE TABLE ten_%s (id int PRIMARY KEY)', NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER provide AFTER INSERT ON ten FOR EACH ROW EXECUTE FUNCTION provide();
INSERT INTO ten VALUES (1);
-- case: a06 a request inside a row trigger
-- on n1
CREATE SEQUENCE sq;
CREATE TABLE ten (id int PRIMARY KEY, prov bool);
CREATE FUNCTION provide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE ten SET prov = true WHERE id = NEW.id;
    PERFORM pgherd.setval('sq', 100);
    RETURN NULL;
END $$;
CREATE TRIGGER provide AFTER INSERT ON ten FOR EACH ROW EXECUTE FUNCTION provide();
INSERT INTO ten VALUES (1);
-- case: a06 a command inside a delete of a row that was touched twice
-- on n1
CREATE TABLE del (id int PRIMARY KEY, v int);
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    EXECUTE format('CREATE TABLE del_%s (id int PRIMARY KEY)', OLD.id);
    RETURN NULL;
END $$;
CREATE TRIGGER f AFTER DELETE ON del FOR EACH ROW EXECUTE FUNCTION f();
INSERT INTO del VALUES (1, 0);
BEGIN;
UPDATE del SET v = 1 WHERE id = 1;
UPDATE del SET v = 2 WHERE id = 1;
DELETE FROM del WHERE id = 1;
COMMIT;
-- case: a06 a foreign key inside an insert
-- on n1
CREATE TABLE pp (id int PRIMARY KEY);
CREATE TABLE cc (id int PRIMARY KEY, pid int);
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO cc VALUES (NEW.id, NEW.id);
    ALTER TABLE cc ADD FOREIGN KEY (pid) REFERENCES pp;
    RETURN NULL;
END $$;
CREATE TRIGGER f AFTER INSERT ON pp FOR EACH ROW EXECUTE FUNCTION f();
INSERT INTO pp VALUES (1);
-- case: a06 a unique value taken over inside a delete, with a request
-- on n1
CREATE SEQUENCE sq;
CREATE TABLE uq (id int PRIMARY KEY, u int UNIQUE);
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO uq VALUES (OLD.id + 1, OLD.u);
    PERFORM pgherd.setval('sq', 100);
    RETURN NULL;
END $$;
CREATE TRIGGER f AFTER DELETE ON uq FOR EACH ROW EXECUTE FUNCTION f();
INSERT INTO uq VALUES (1, 7);
DELETE FROM uq WHERE id = 1;
-- case: a06 a function with a command in INSERT ... SELECT
-- on n1
CREATE TABLE ins (id int PRIMARY KEY, v int);
CREATE FUNCTION f(i int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
    UPDATE ins SET v = 1;
    EXECUTE format('CREATE TABLE ins_%s (id int PRIMARY KEY)', i);
    RETURN i;
END $$;
INSERT INTO ins SELECT f(g) FROM generate_series(1, 3) g;
