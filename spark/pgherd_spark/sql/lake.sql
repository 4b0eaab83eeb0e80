-- Rows as text, for the copy in Parquet.

-- name: text
CASE WHEN {column} IS DISTINCT FROM NULL THEN format('%s', {column}) END

-- name: rows
SELECT {values} FROM {relation} t WHERE {range}
