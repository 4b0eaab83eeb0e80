-- Four of five customers come back, the fifth is new.
\set cart :first_cart + :client_id
\set customer random(1, :customers)
\set country random(1, 92)
\set kind random(1, 5)
BEGIN;
\if :kind = 1
INSERT INTO address (addr_street1, addr_street2, addr_city, addr_state, addr_zip, addr_co_id)
    VALUES ('street', 'house', 'city', 'state', '00000000', :country) RETURNING addr_id AS address \gset
INSERT INTO customer SELECT id, 'U' || id, 'u' || id, 'first', 'last', :address::int, '555', 'U@example.org',
    current_date, current_date, now(), now() + interval '2 hours', 0.1, 0, 0, date '1980-01-01',
    repeat('c', 200) FROM nextval('customer_ids') id RETURNING c_id AS customer \gset
\else
SELECT c_id AS customer FROM customer WHERE c_uname = 'U' || :customer::text \gset
UPDATE customer SET c_login = now(), c_expiration = now() + interval '2 hours' WHERE c_id = :customer;
\endif
SELECT customer.*, address.*, co_name FROM customer JOIN address ON addr_id = c_addr_id
    JOIN country ON co_id = addr_co_id WHERE c_id = :customer;
SELECT i_id, i_title, i_cost, i_srp, i_backing, scl_qty FROM shopping_cart_line
    JOIN item ON i_id = scl_i_id WHERE scl_sc_id = :cart;
COMMIT;
