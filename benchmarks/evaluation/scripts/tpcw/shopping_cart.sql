-- The client's own cart, made where it is missing: an item more, or another quantity; 0 takes it out.
\set cart :first_cart + :client_id
\set item random(1, :items)
\set quantity random(0, 4)
\set kind random(1, 2)
BEGIN;
INSERT INTO shopping_cart VALUES (:cart, now()) ON CONFLICT (sc_id) DO UPDATE SET sc_time = now();
\if :kind = 1
INSERT INTO shopping_cart_line VALUES (:cart, :item, 1)
    ON CONFLICT (scl_sc_id, scl_i_id) DO UPDATE SET scl_qty = shopping_cart_line.scl_qty + 1;
\elif :quantity = 0
DELETE FROM shopping_cart_line WHERE scl_sc_id = :cart
    AND scl_i_id = (SELECT min(scl_i_id) FROM shopping_cart_line WHERE scl_sc_id = :cart);
\else
UPDATE shopping_cart_line SET scl_qty = :quantity WHERE scl_sc_id = :cart
    AND scl_i_id = (SELECT min(scl_i_id) FROM shopping_cart_line WHERE scl_sc_id = :cart);
\endif
SELECT i_id, i_title, i_cost, i_srp, i_backing, scl_qty FROM shopping_cart_line
    JOIN item ON i_id = scl_i_id WHERE scl_sc_id = :cart;
COMMIT;
