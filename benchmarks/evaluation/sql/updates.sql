-- The ten tables of Postgres-R(SI) 6.2 and 6.3. Variables: rows, of each of them.
SELECT format('DROP TABLE IF EXISTS u%1$s', t) FROM generate_series(1, 10) t \gexec
SELECT format('CREATE TABLE u%1$s (id int PRIMARY KEY, v int NOT NULL, filler text NOT NULL)', t)
    FROM generate_series(1, 10) t \gexec
SELECT format('INSERT INTO u%1$s SELECT i, 0, repeat(''x'', 80) FROM generate_series(1, %2$s) i', t, :rows)
    FROM generate_series(1, 10) t \gexec
