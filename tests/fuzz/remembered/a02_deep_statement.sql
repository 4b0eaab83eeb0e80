-- case: a02 the deepest view that the origin's stack allows
-- apart
-- on n1
DO $d$
DECLARE
    low int := 1000;
    high int := 20000;
BEGIN
    CREATE TABLE deepest (additions int PRIMARY KEY);
    WHILE high - low > 1 LOOP
        BEGIN
            EXECUTE 'CREATE VIEW deep AS SELECT 1' || repeat('+1', (low + high) / 2) || ' AS x';
            RAISE division_by_zero;
        EXCEPTION
            WHEN division_by_zero THEN low := (low + high) / 2;
            WHEN statement_too_complex THEN high := (low + high) / 2;
        END;
    END LOOP;
    INSERT INTO deepest VALUES (low);
END $d$;
DO $d$
DECLARE n int := (SELECT additions FROM deepest);
BEGIN
    LOOP
        BEGIN
            EXECUTE 'CREATE VIEW deep AS SELECT 1' || repeat('+1', n) || ' AS x';
            EXIT;
        EXCEPTION WHEN statement_too_complex THEN n := n - 1;
        END;
    END LOOP;
END $d$;
