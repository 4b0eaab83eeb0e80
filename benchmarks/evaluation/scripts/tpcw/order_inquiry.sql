\set customer random(1, :customers)
SELECT c_uname FROM customer WHERE c_id = :customer;
