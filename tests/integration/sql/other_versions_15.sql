-- The same, what PostgreSQL has since 15.
CREATE TABLE shop.newer (id int, t text, UNIQUE NULLS NOT DISTINCT (id, t));
CREATE VIEW shop.invoker WITH (security_invoker = true) AS SELECT * FROM shop.newer;
INSERT INTO shop.newer VALUES (NULL, 'a'), (1, NULL);
