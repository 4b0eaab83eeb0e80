-- What transactions of many bytes copy, and where to. Texts of digits that hardly compress.
DROP TABLE IF EXISTS document, payload;
DROP SEQUENCE IF EXISTS document_ids;
CREATE SEQUENCE document_ids;
CREATE TABLE document (id bigint PRIMARY KEY DEFAULT nextval('document_ids'), body text NOT NULL);
CREATE TABLE payload (id int PRIMARY KEY, body text NOT NULL);
INSERT INTO payload SELECT 1, string_agg(md5(i::text), '') FROM generate_series(1, 31250) i;
