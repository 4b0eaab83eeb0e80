-- What TPC-B and TPC-C promise of every consistent state, each with the number of violations.
-- One statement, so one snapshot: it holds under load as well.
SELECT 'TPC-B: balances of branches, tellers, accounts and history agree',
       (sums.branches <> sums.history)::int + (sums.tellers <> sums.history)::int
           + (sums.accounts <> sums.history)::int
  FROM (SELECT (SELECT sum(bbalance) FROM pgbench_branches) AS branches,
               (SELECT sum(tbalance) FROM pgbench_tellers) AS tellers,
               (SELECT sum(abalance) FROM pgbench_accounts) AS accounts,
               (SELECT coalesce(sum(delta), 0) FROM pgbench_history) AS history) sums
UNION ALL
SELECT 'TPC-B: each branch is the sum of its history', count(*)
  FROM pgbench_branches
  LEFT JOIN (SELECT bid, sum(delta) AS delta FROM pgbench_history GROUP BY bid) moved USING (bid)
 WHERE bbalance <> coalesce(moved.delta, 0)
UNION ALL
SELECT 'TPC-C 1: W_YTD = sum(D_YTD)', count(*)
  FROM tpcc.warehouse
 WHERE w_ytd <> (SELECT sum(d_ytd) FROM tpcc.district WHERE d_w_id = w_id)
UNION ALL
SELECT 'TPC-C 2: D_NEXT_O_ID - 1 = max(O_ID) = max(NO_O_ID)', count(*)
  FROM tpcc.district
 WHERE d_next_o_id - 1 <> (SELECT max(o_id) FROM tpcc.orders
                            WHERE o_w_id = d_w_id AND o_d_id = d_id)
    OR d_next_o_id - 1 <> (SELECT max(no_o_id) FROM tpcc.new_order
                            WHERE no_w_id = d_w_id AND no_d_id = d_id)
UNION ALL
SELECT 'TPC-C 3: undelivered orders have no gaps', count(*)
  FROM (SELECT FROM tpcc.new_order GROUP BY no_w_id, no_d_id
        HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)) gaps
UNION ALL
SELECT 'TPC-C 4: sum(O_OL_CNT) = number of order lines', count(*)
  FROM (SELECT o_w_id, o_d_id, sum(o_ol_cnt) AS lines FROM tpcc.orders GROUP BY 1, 2) promised
  FULL JOIN (SELECT ol_w_id, ol_d_id, count(*) AS lines FROM tpcc.order_line GROUP BY 1, 2) present
    ON (o_w_id, o_d_id) = (ol_w_id, ol_d_id)
 WHERE promised.lines IS DISTINCT FROM present.lines
UNION ALL
SELECT 'TPC-C 5: an order has a carrier or waits in NEW-ORDER', count(*)
  FROM tpcc.orders
  LEFT JOIN tpcc.new_order ON (no_w_id, no_d_id, no_o_id) = (o_w_id, o_d_id, o_id)
 WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)
UNION ALL
SELECT 'TPC-C 7: a line is delivered with its order', count(*)
  FROM tpcc.order_line
  JOIN tpcc.orders ON (o_w_id, o_d_id, o_id) = (ol_w_id, ol_d_id, ol_o_id)
 WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)
UNION ALL
SELECT 'TPC-C 8: W_YTD = opening balance + sum(H_AMOUNT)', count(*)
  FROM tpcc.warehouse
 WHERE w_ytd <> 300000 + (SELECT coalesce(sum(h_amount), 0) FROM tpcc.history WHERE h_w_id = w_id)
ORDER BY 1;
