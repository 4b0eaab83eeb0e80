-- Checksums of the rows of one file of a table. Each statement follows a line `-- name: NAME`; {...} are filled in by
-- checksums.py.
--
-- A row counts by its text: the record literal of its columns in the order of their names, hashed to 64 bits twice
-- with different seeds; a set of rows by the sums of the hashes: no order, and no two equal rows cancel each other.
-- ROW(...) is a record, which no cast that somebody made turns into text. The bucket is one of the row's key, so that it
-- does not depend on where a member has put the row.

-- Turning a row into text costs more than all else: OFFSET 0 has it done once.

-- name: buckets
SELECT (hashtextextended(t.key, 2) & {mask})::int, count(*),
       sum(hashtextextended(t.whole, 0)), sum(hashtextextended(t.whole, 1))
  FROM (SELECT {key}::text AS key, {row}::text AS whole FROM {relation} t WHERE {range} OFFSET 0) t
 GROUP BY 1;

-- The hash is that of rowhash.py.
-- name: quick
SELECT count(*), coalesce(sum({hash}), 0) FROM {relation} t WHERE {range};

-- name: rows
SELECT {key}::text, hashtextextended({row}::text, 0), hashtextextended({row}::text, 1), t.ctid::text
  FROM {relation} t
 WHERE {range} AND (hashtextextended({key}::text, 2) & {mask})::int = ANY ({buckets});

-- name: values
SELECT {key}::text, {values}
  FROM {relation} t
 WHERE t.ctid = ANY ({ctids}::tid[]);
