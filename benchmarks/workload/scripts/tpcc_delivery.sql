-- Delivery: the oldest order of each district of one of the node's warehouses.
\set home 1 + :node + :nodes * random(0, :warehouses / :nodes - 1)
\set carrier random(1, 10)
SELECT tpcc.delivery(:home, :carrier);
