-- Payment: 15 % by a customer of another warehouse. The warehouse, the hottest row, comes last.
\set home 1 + :node + :nodes * random(0, :warehouses / :nodes - 1)
\set theirs case when random(1, 100) <= 15 then random(1, :warehouses) else :home end
\set dist random(1, 10)
\set cust random(1, :customers)
\set amount random(1, 5000)
BEGIN\; UPDATE tpcc.customer SET c_balance = c_balance - :amount, c_ytd_payment = c_ytd_payment + :amount, c_payment_cnt = c_payment_cnt + 1 WHERE c_w_id = :theirs AND c_d_id = :dist AND c_id = :cust\; UPDATE tpcc.district SET d_ytd = d_ytd + :amount WHERE d_w_id = :home AND d_id = :dist\; INSERT INTO tpcc.history (h_c_w_id, h_c_d_id, h_c_id, h_w_id, h_d_id, h_date, h_amount) VALUES (:theirs, :dist, :cust, :home, :dist, now(), :amount)\; UPDATE tpcc.warehouse SET w_ytd = w_ytd + :amount WHERE w_id = :home\; END;
