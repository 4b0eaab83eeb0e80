\set subject random(0, 23)
SELECT i_id, i_title, a_fname, a_lname FROM item JOIN author ON a_id = i_a_id
    WHERE i_subject = :subject ORDER BY i_pub_date DESC, i_title LIMIT 50;
