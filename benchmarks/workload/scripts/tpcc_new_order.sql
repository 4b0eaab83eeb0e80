-- New-Order: 5 to 15 lines, 1 % supplied by another warehouse, 1 % rolled back by the customer.
\set home 1 + :node + :nodes * random(0, :warehouses / :nodes - 1)
\set supply case when random(1, 100) = 1 then random(1, :warehouses) else :home end
\set dist random(1, 10)
\set cust random(1, :customers)
\set lines random(5, 15)
\if random(1, 100) > 1
SELECT tpcc.new_order(:home, :supply, :dist, :cust, :lines);
\else
BEGIN\; SELECT tpcc.new_order(:home, :supply, :dist, :cust, :lines)\; ROLLBACK;
\endif
