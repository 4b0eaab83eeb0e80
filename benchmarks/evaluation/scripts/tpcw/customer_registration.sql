\set customer random(1, :customers)
SELECT c_uname, c_passwd FROM customer WHERE c_id = :customer;
