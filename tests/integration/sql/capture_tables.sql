-- The tables, functions and triggers that test_capture_statements.py writes to.

CREATE TABLE item (id int PRIMARY KEY, code text UNIQUE, n int NOT NULL DEFAULT 0, note text);
CREATE TABLE parent (id int PRIMARY KEY, v text);
CREATE TABLE child (id int PRIMARY KEY, pid int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE orphan (id int PRIMARY KEY, pid int REFERENCES parent ON DELETE SET NULL ON UPDATE SET NULL);
CREATE TABLE fallback (id int PRIMARY KEY, pid int DEFAULT 0 REFERENCES parent ON DELETE SET DEFAULT);
CREATE TABLE numbered (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
CREATE TABLE swap (id int PRIMARY KEY DEFERRABLE INITIALLY IMMEDIATE, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE log (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), what text);
CREATE TABLE touched (id int PRIMARY KEY, n int, stamp text);
CREATE VIEW items AS SELECT id, code, n FROM item WHERE n >= 0;

CREATE FUNCTION add_items(low int, high int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN low..high LOOP
        INSERT INTO item VALUES (i, 'f' || i);
        BEGIN
            UPDATE item SET n = n + 1 WHERE id = i;
            IF i % 2 = 0 THEN RAISE division_by_zero; END IF;
        EXCEPTION WHEN division_by_zero THEN
            NULL;
        END;
    END LOOP;
END $$;
CREATE PROCEDURE commit_each(low int, high int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN low..high LOOP
        INSERT INTO item VALUES (i, 'p' || i);
        IF i % 3 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
    END LOOP;
END $$;

CREATE FUNCTION before_touched() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.stamp := concat('before ', NEW.stamp); RETURN NEW; END $$;
CREATE TRIGGER a BEFORE INSERT OR UPDATE ON touched FOR EACH ROW EXECUTE FUNCTION before_touched();
CREATE FUNCTION after_touched() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN UPDATE touched SET n = n + 100 WHERE id = NEW.id AND n < 100; RETURN NULL; END $$;
CREATE TRIGGER b AFTER INSERT ON touched FOR EACH ROW EXECUTE FUNCTION after_touched();
CREATE FUNCTION log_touched() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO log(what) VALUES (TG_OP); RETURN NULL; END $$;
CREATE TRIGGER c AFTER INSERT OR UPDATE OR DELETE ON touched FOR EACH STATEMENT EXECUTE FUNCTION log_touched();
