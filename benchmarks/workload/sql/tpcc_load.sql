-- Rows of the small TPC-C: ten districts a warehouse; of a district's :customers orders, one a
-- customer, the newest third is not delivered yet. Ten lines an order.
SET search_path = tpcc;

INSERT INTO warehouse
SELECT w, 'warehouse ' || w, 0.05, 10 * 30000 FROM generate_series(1, :warehouses) w;

INSERT INTO district
SELECT w, d, 'district ' || d, 0.07, 30000, :customers + 1
FROM generate_series(1, :warehouses) w, generate_series(1, 10) d;

INSERT INTO item
SELECT i, 'item ' || i, 1 + i % 99 FROM generate_series(1, :items) i;

INSERT INTO stock
SELECT w, i, 50 + i % 50, 0, 0, repeat('s', 24)
FROM generate_series(1, :warehouses) w, generate_series(1, :items) i;

INSERT INTO customer
SELECT w, d, c, 'customer ' || c, -10, 10, 1, 0, repeat('c', 100)
FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, :customers) c;

INSERT INTO orders
SELECT w, d, o, o, now(), CASE WHEN o <= :customers * 2 / 3 THEN 1 END, 10
FROM generate_series(1, :warehouses) w, generate_series(1, 10) d, generate_series(1, :customers) o;

INSERT INTO new_order
SELECT o_w_id, o_d_id, o_id FROM orders WHERE o_carrier_id IS NULL;

INSERT INTO order_line
SELECT o_w_id, o_d_id, o_id, l, (o_id * 7 + l * 13) % :items + 1, o_w_id,
       CASE WHEN o_carrier_id IS NOT NULL THEN o_entry_d END, 5, 0
FROM orders, generate_series(1, o_ol_cnt) l;
