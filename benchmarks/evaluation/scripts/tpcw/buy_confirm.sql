-- An order of what is in the cart; of one item if it is empty. Stock that runs low is filled up.
\set cart :first_cart + :client_id
\set customer random(1, :customers)
\set item random(1, :items)
\set country random(1, 92)
BEGIN;
INSERT INTO shopping_cart VALUES (:cart, now()) ON CONFLICT (sc_id) DO UPDATE SET sc_time = now();
INSERT INTO shopping_cart_line SELECT :cart::int, :item::int, 1
    WHERE NOT EXISTS (SELECT FROM shopping_cart_line WHERE scl_sc_id = :cart);
SELECT sum(i_cost * scl_qty) AS amount FROM shopping_cart_line JOIN item ON i_id = scl_i_id
    WHERE scl_sc_id = :cart \gset
SELECT c_addr_id AS address FROM customer WHERE c_id = :customer \gset
INSERT INTO orders (o_c_id, o_date, o_sub_total, o_tax, o_total, o_ship_type, o_ship_date,
                    o_bill_addr_id, o_ship_addr_id, o_status)
    VALUES (:customer, now(), :amount, 0.0825 * :amount::numeric, 1.0825 * :amount::numeric, 'AIR',
            now() + interval '3 days', :address, :address, 'PENDING') RETURNING o_id AS order_id \gset
INSERT INTO order_line SELECT :order_id::int, row_number() OVER (ORDER BY scl_i_id), scl_i_id, scl_qty, 0.1,
    'comment' FROM shopping_cart_line WHERE scl_sc_id = :cart;
UPDATE item SET i_stock = i_stock - scl_qty + CASE WHEN i_stock - scl_qty < 10 THEN 21 ELSE 0 END
    FROM shopping_cart_line WHERE scl_i_id = i_id AND scl_sc_id = :cart;
INSERT INTO cc_xacts VALUES (:order_id, 'VISA', '0000000000000000', 'name', date '2008-01-01',
    '000000000000000', 1.0825 * :amount::numeric, now(), :country);
DELETE FROM shopping_cart_line WHERE scl_sc_id = :cart;
COMMIT;
