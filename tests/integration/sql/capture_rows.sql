-- The rows with which each case of capture_statements.sql begins.
TRUNCATE item, parent, child, orphan, fallback, numbered, swap, log, touched;
INSERT INTO item SELECT i, 'c' || i, i, repeat('x', i) FROM generate_series(1, 9) i;
INSERT INTO parent VALUES (0, 'none'), (1, 'one'), (2, 'two'), (3, 'three');
INSERT INTO child VALUES (1, 1), (2, 1), (3, 2);
INSERT INTO orphan SELECT * FROM child;
INSERT INTO fallback SELECT * FROM child;
INSERT INTO swap VALUES (1, 10), (2, 20), (3, 30);
INSERT INTO touched VALUES (1, 1000, 'x'), (2, 2000, 'y');
