-- By title, author or subject.
\set kind random(1, 3)
\set word random(1, 99)
\set subject random(0, 23)
\if :kind = 1
SELECT i_id, i_title, a_fname, a_lname FROM item JOIN author ON a_id = i_a_id
    WHERE i_title LIKE :word::text || '%' ORDER BY i_title LIMIT 50;
\elif :kind = 2
SELECT i_id, i_title, a_fname, a_lname FROM item JOIN author ON a_id = i_a_id
    WHERE a_lname LIKE 'last ' || :word::text || '%' ORDER BY i_title LIMIT 50;
\else
SELECT i_id, i_title, a_fname, a_lname FROM item JOIN author ON a_id = i_a_id
    WHERE i_subject = :subject ORDER BY i_title LIMIT 50;
\endif
