-- What capture_types.sql needs of types that are not built in.
CREATE TYPE mood AS ENUM ('so-so', 'it''s "fine", (really)', 'third');
CREATE TYPE pair AS (a int, "b c" text);
CREATE TYPE nested AS (p pair, m mood[], d date);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN short AS varchar(3) NOT NULL;
CREATE TYPE floatrange AS RANGE (subtype = float8);
