-- Among the 3,333 newest orders.
\set subject random(0, 23)
SELECT i_id, i_title, a_fname, a_lname, sum(ol_qty) AS sold
    FROM (SELECT o_id FROM orders ORDER BY o_date DESC LIMIT 3333) newest
    JOIN order_line ON ol_o_id = o_id JOIN item ON i_id = ol_i_id JOIN author ON a_id = i_a_id
    WHERE i_subject = :subject GROUP BY i_id, i_title, a_fname, a_lname ORDER BY sold DESC LIMIT 50;
