-- What the cases of hook_endings.sql write to.
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE u (id int PRIMARY KEY);
CREATE FUNCTION write_u(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN INSERT INTO u VALUES (n); RETURN n; END $$;
CREATE FUNCTION execute(command text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN EXECUTE command; RETURN 1; END $$;
CREATE FUNCTION early() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    SET CONSTRAINTS ALL IMMEDIATE;
    EXECUTE 'CLOSE ALL';
END $$;
CREATE FUNCTION early_sql() RETURNS void LANGUAGE sql AS 'SET CONSTRAINTS ALL IMMEDIATE';
CREATE PROCEDURE loop_of_commits(early bool) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..5 LOOP
        INSERT INTO t VALUES (i);
        IF early THEN
            EXECUTE 'SET CONSTRAINTS ALL IMMEDIATE';
            EXECUTE 'CLOSE ALL';
        END IF;
        COMMIT;
    END LOOP;
END $$;
CREATE PROCEDURE loop_over_query() LANGUAGE plpgsql AS $$
DECLARE i int;
BEGIN
    FOR i IN SELECT write_u(n) FROM generate_series(1, 100) n LOOP
        INSERT INTO t VALUES (i);
        COMMIT;
    END LOOP;
END $$;
CREATE PROCEDURE "x line 3 at COMMIT constraints"() LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO t VALUES (1);
    SET CONSTRAINTS ALL IMMEDIATE;
    EXECUTE 'CLOSE ALL';
    COMMIT;
    INSERT INTO t VALUES (2);
END $$;
