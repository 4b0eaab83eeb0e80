-- Draw values of a table's sequence on this node until they are past the loaded ids.
SELECT max(nextval(seq.name))
  FROM (SELECT pg_get_serial_sequence(%(table)s, 'id')::regclass AS name) seq
  JOIN pg_sequence ON seqrelid = seq.name,
       generate_series(1, %(last)s / seqincrement + 1);
