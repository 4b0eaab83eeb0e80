\set customer random(1, :customers)
\set item random(1, :items)
BEGIN;
SELECT c_fname, c_lname FROM customer WHERE c_id = :customer;
SELECT other.i_id, other.i_thumbnail FROM item chosen JOIN item other ON other.i_id IN (
    chosen.i_related1, chosen.i_related2, chosen.i_related3, chosen.i_related4, chosen.i_related5)
    WHERE chosen.i_id = :item;
COMMIT;
