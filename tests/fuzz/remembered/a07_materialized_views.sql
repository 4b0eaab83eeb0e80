-- case: a07 REFRESH in a transaction beside a writer
-- on n1
CREATE TABLE mt (id int PRIMARY KEY);
CREATE MATERIALIZED VIEW mmv AS SELECT count(*) AS c, max(id) AS m FROM mt;
-- on n1 a
BEGIN;
REFRESH MATERIALIZED VIEW mmv;
-- on n2
INSERT INTO mt VALUES (1);
-- together
-- on n1 a
COMMIT;
-- case: a07 REFRESH beside writers
-- on n1
CREATE TABLE mt (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), w int);
CREATE MATERIALIZED VIEW mmv AS SELECT count(*) AS c FROM mt;
CREATE PROCEDURE fill() LANGUAGE plpgsql AS $$ BEGIN
    FOR i IN 1..150 LOOP INSERT INTO mt (w) VALUES (i); COMMIT; END LOOP;
END $$;
CREATE PROCEDURE fresh() LANGUAGE plpgsql AS $$ BEGIN
    FOR i IN 1..20 LOOP
        BEGIN
            REFRESH MATERIALIZED VIEW mmv;
        EXCEPTION WHEN serialization_failure THEN NULL;
        END;
        PERFORM pg_sleep(0.01);
        COMMIT;
    END LOOP;
END $$;
-- together
-- on n2 w at once
CALL fill();
-- on n3 w at once
CALL fill();
-- on n1 r at once
REFRESH MATERIALIZED VIEW mmv;
SELECT pg_sleep(0.05);
REFRESH MATERIALIZED VIEW mmv;
SELECT pg_sleep(0.05);
REFRESH MATERIALIZED VIEW mmv;
-- together
-- case: a07 REFRESH in a statement trigger before ours
-- on n1
CREATE TABLE mt (id int PRIMARY KEY);
CREATE MATERIALIZED VIEW mmv AS SELECT count(*) AS c FROM mt;
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN REFRESH MATERIALIZED VIEW mmv; RETURN NULL; END $$;
CREATE TRIGGER mv_refresh AFTER INSERT ON mt FOR EACH STATEMENT EXECUTE FUNCTION f();
INSERT INTO mt VALUES (1);
