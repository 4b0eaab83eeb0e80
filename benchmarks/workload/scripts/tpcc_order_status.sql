-- Order-Status, read-only: a customer's last order and its lines, of any warehouse.
\set w random(1, :warehouses)
\set dist random(1, 10)
\set cust random(1, :customers)
WITH last_order AS (SELECT * FROM tpcc.orders WHERE o_w_id = :w AND o_d_id = :dist AND o_c_id = :cust ORDER BY o_id DESC LIMIT 1) SELECT c_last, c_balance, o_id, o_entry_d, o_carrier_id, ol_i_id, ol_quantity, ol_amount, ol_delivery_d FROM tpcc.customer JOIN last_order ON (o_w_id, o_d_id, o_c_id) = (c_w_id, c_d_id, c_id) JOIN tpcc.order_line ON (ol_w_id, ol_d_id, ol_o_id) = (o_w_id, o_d_id, o_id) WHERE c_w_id = :w AND c_d_id = :dist AND c_id = :cust;
