-- A table of a given size, filled by transactions of 100,000 rows. Variables: rows.
SELECT format('DROP TABLE IF EXISTS r%s', :rows) \gexec
SELECT format('CREATE TABLE r%s (id int PRIMARY KEY, v int NOT NULL, filler text NOT NULL)', :rows) \gexec
SELECT format('INSERT INTO r%s SELECT i, 0, repeat(''x'', 80) FROM generate_series(%s, %s) i',
              :rows, first, least(first + 99999, :rows))
    FROM generate_series(1, :rows, 100000) first \gexec
