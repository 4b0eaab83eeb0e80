-- TPC-W's tables (clause 1.4 of the specification) and rows. Of the columns only the pictures' names
-- stand for files. Variables: items, customers (2,880 a client in the specification).
-- Subjects are numbers from 0 to 23, and titles begin with a number, so that pgbench can draw them.

SELECT 2 * :customers AS addresses, :customers * 9 / 10 AS orders,
       greatest(:items / 4, 1) AS authors, 92 AS countries \gset
SELECT :addresses + 1 AS next_address, :customers + 1 AS next_customer, :orders + 1 AS next_order \gset

DROP TABLE IF EXISTS shopping_cart_line, shopping_cart, cc_xacts, order_line, orders, item, author,
    customer, address, country;
DROP SEQUENCE IF EXISTS address_ids, customer_ids, order_ids;
CREATE SEQUENCE address_ids START WITH :next_address;
CREATE SEQUENCE customer_ids START WITH :next_customer;
CREATE SEQUENCE order_ids START WITH :next_order;

CREATE TABLE country (
    co_id int PRIMARY KEY, co_name text NOT NULL, co_exchange numeric(12, 6) NOT NULL,
    co_currency text NOT NULL);
CREATE TABLE address (
    addr_id int PRIMARY KEY DEFAULT nextval('address_ids'), addr_street1 text NOT NULL,
    addr_street2 text NOT NULL, addr_city text NOT NULL, addr_state text NOT NULL,
    addr_zip text NOT NULL, addr_co_id int NOT NULL REFERENCES country);
CREATE TABLE customer (
    c_id int PRIMARY KEY DEFAULT nextval('customer_ids'), c_uname text NOT NULL UNIQUE,
    c_passwd text NOT NULL, c_fname text NOT NULL, c_lname text NOT NULL,
    c_addr_id int NOT NULL REFERENCES address, c_phone text NOT NULL, c_email text NOT NULL,
    c_since date NOT NULL, c_last_login date NOT NULL, c_login timestamp NOT NULL,
    c_expiration timestamp NOT NULL, c_discount numeric(5, 2) NOT NULL,
    c_balance numeric(15, 2) NOT NULL, c_ytd_pmt numeric(15, 2) NOT NULL,
    c_birthdate date NOT NULL, c_data text NOT NULL);
CREATE TABLE author (
    a_id int PRIMARY KEY, a_fname text NOT NULL, a_lname text NOT NULL, a_mname text NOT NULL,
    a_dob date NOT NULL, a_bio text NOT NULL);
CREATE TABLE item (
    i_id int PRIMARY KEY, i_title text NOT NULL, i_a_id int NOT NULL REFERENCES author,
    i_pub_date date NOT NULL, i_publisher text NOT NULL, i_subject int NOT NULL,
    i_desc text NOT NULL, i_related1 int NOT NULL, i_related2 int NOT NULL,
    i_related3 int NOT NULL, i_related4 int NOT NULL, i_related5 int NOT NULL,
    i_thumbnail text NOT NULL, i_image text NOT NULL, i_srp numeric(15, 2) NOT NULL,
    i_cost numeric(15, 2) NOT NULL, i_avail date NOT NULL, i_stock int NOT NULL,
    i_isbn text NOT NULL, i_page int NOT NULL, i_backing text NOT NULL,
    i_dimensions text NOT NULL);
CREATE TABLE orders (
    o_id int PRIMARY KEY DEFAULT nextval('order_ids'), o_c_id int NOT NULL REFERENCES customer,
    o_date timestamp NOT NULL, o_sub_total numeric(15, 2) NOT NULL, o_tax numeric(15, 2) NOT NULL,
    o_total numeric(15, 2) NOT NULL, o_ship_type text NOT NULL, o_ship_date timestamp NOT NULL,
    o_bill_addr_id int NOT NULL REFERENCES address, o_ship_addr_id int NOT NULL REFERENCES address,
    o_status text NOT NULL);
CREATE TABLE order_line (
    ol_o_id int NOT NULL REFERENCES orders, ol_id int NOT NULL, ol_i_id int NOT NULL REFERENCES item,
    ol_qty int NOT NULL, ol_discount numeric(5, 2) NOT NULL, ol_comments text NOT NULL,
    PRIMARY KEY (ol_o_id, ol_id));
CREATE TABLE cc_xacts (
    cx_o_id int PRIMARY KEY REFERENCES orders, cx_type text NOT NULL, cx_num text NOT NULL,
    cx_name text NOT NULL, cx_expire date NOT NULL, cx_auth_id text,
    cx_xact_amt numeric(15, 2) NOT NULL, cx_xact_date timestamp NOT NULL,
    cx_co_id int NOT NULL REFERENCES country);
CREATE TABLE shopping_cart (sc_id int PRIMARY KEY, sc_time timestamp NOT NULL);
CREATE TABLE shopping_cart_line (
    scl_sc_id int NOT NULL REFERENCES shopping_cart, scl_i_id int NOT NULL REFERENCES item,
    scl_qty int NOT NULL, PRIMARY KEY (scl_sc_id, scl_i_id));

INSERT INTO country SELECT i, 'country ' || i, 1 + i / 100.0, 'currency ' || i
    FROM generate_series(1, :countries) i;
INSERT INTO address SELECT i, 'street ' || i, 'house ' || i % 97, 'city ' || i % 1000, 'state ' || i % 50,
    lpad(i::text, 8, '0'), i % :countries + 1 FROM generate_series(1, :addresses) i;
INSERT INTO customer SELECT i, 'U' || i, 'u' || i, 'first ' || i % 1000, 'last ' || i, 2 * i, '555' || i,
    'U' || i || '@example.org', date '2005-01-01' - i % 730, date '2005-01-01' - i % 60,
    timestamp '2005-01-01', timestamp '2005-01-01 02:00', i % 51 / 100.0, 0, i % 1000,
    date '1980-01-01' - i % 10000, repeat(md5(i::text), 4 + i % 12) FROM generate_series(1, :customers) i;
INSERT INTO author SELECT i, 'first ' || i, 'last ' || i * 7919 % 1000, 'm', date '1960-01-01' - i % 10000,
    repeat(md5('a' || i), 4 + i % 12) FROM generate_series(1, :authors) i;
INSERT INTO item SELECT i, i * 7919 % 10000 || ' title', (i - 1) % :authors + 1,
    date '2005-01-01' - i * 31 % 27000, 'publisher ' || i % 100, i * 31 % 24,
    repeat(md5('i' || i), 4 + i % 12), (i + 1) % :items + 1, (i + 2) % :items + 1,
    (i + 3) % :items + 1, (i + 5) % :items + 1, (i + 7) % :items + 1,
    'thumb_' || i || '.gif', 'image_' || i || '.gif', 10 + i % 90, 5 + i % 90,
    date '2005-01-01' + i % 30, 10 + i % 21, lpad(i::text, 13, '0'), 20 + i % 9980, 'PAPERBACK',
    '20 x 15 x 3' FROM generate_series(1, :items) i;
INSERT INTO orders SELECT i, (i * 7919::bigint % :customers + 1)::int,
    timestamp '2005-01-01' - (:orders - i) * interval '1 minute', 50, 4, 57, 'AIR',
    timestamp '2005-01-02', (2 * (i * 7919::bigint % :customers + 1))::int,
    (2 * (i * 7919::bigint % :customers + 1) - 1)::int, 'SHIPPED' FROM generate_series(1, :orders) i;
INSERT INTO order_line SELECT o, l, (o * 31::bigint + l * 977) % :items + 1, 1 + (o + l) % 5, 0.1,
    repeat('c', 20 + (o + l) % 80)
    FROM generate_series(1, :orders) o, generate_series(1, 5) l WHERE l <= 1 + o % 5;
INSERT INTO cc_xacts SELECT i, 'VISA', lpad(i::text, 16, '0'), 'name ' || i, date '2008-01-01',
    lpad(i::text, 15, '0'), 57, timestamp '2005-01-01', i % :countries + 1
    FROM generate_series(1, :orders) i;

CREATE INDEX ON orders (o_c_id);
CREATE INDEX ON orders (o_date);
CREATE INDEX ON order_line (ol_i_id);
CREATE INDEX ON item (i_subject);
CREATE INDEX ON item (i_a_id);
