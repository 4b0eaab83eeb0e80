-- The newest order of a customer; one without any sees none.
\set customer random(1, :customers)
\set order_id 0
BEGIN;
SELECT coalesce(max(o_id), 0) AS order_id FROM orders
    WHERE o_c_id = (SELECT c_id FROM customer WHERE c_uname = 'U' || :customer::text) \gset
SELECT orders.*, cc_xacts.cx_type, bill.*, ship.* FROM orders JOIN cc_xacts ON cx_o_id = o_id
    JOIN address bill ON bill.addr_id = o_bill_addr_id JOIN address ship ON ship.addr_id = o_ship_addr_id
    WHERE o_id = :order_id;
SELECT ol_i_id, i_title, i_publisher, i_cost, ol_qty, ol_discount, ol_comments FROM order_line
    JOIN item ON i_id = ol_i_id WHERE ol_o_id = :order_id;
COMMIT;
