-- The database that is dumped: eight tables of orders, with a key, a foreign key and two indexes each.
CREATE TABLE customers (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL);
INSERT INTO customers (name) SELECT 'customer ' || i FROM generate_series(1, 1000) i;

SELECT format($$
    CREATE TABLE orders_%1$s (
        id bigserial PRIMARY KEY, customer int NOT NULL REFERENCES customers, placed timestamptz NOT NULL,
        price numeric(12, 2), state text NOT NULL, note text);
    CREATE INDEX ON orders_%1$s (customer);
    CREATE INDEX ON orders_%1$s (placed, state);
    INSERT INTO orders_%1$s (customer, placed, price, state, note)
    SELECT 1 + i %% 1000, '2024-01-01 00:00+00'::timestamptz + make_interval(secs => i), i / 7.0,
           (ARRAY['new', 'paid', 'sent'])[1 + i %% 3], md5(i::text) || md5((i + 1)::text)
      FROM generate_series(1, %2$s) i$$, n, :rows / 8)
  FROM generate_series(1, 8) n
\gexec
