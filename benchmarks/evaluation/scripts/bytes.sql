-- One row, or rows of a megabyte.
INSERT INTO document (body)
    SELECT left(body, least(:bytes, 1000000)) FROM payload, generate_series(1, greatest(:bytes / 1000000, 1));
