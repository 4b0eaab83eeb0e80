-- pgbench's TPC-B transaction. As TPC-B asks, a teller works in a branch of its own (here: of its
-- node) and 15 of 100 accounts belong to another branch. One message to the server (\;): a session
-- that loses its row to another node's transaction then always hears 40001, which pgbench repeats;
-- caught between two messages it would be closed.
\set home 1 + :node + :nodes * random(0, :branches / :nodes - 1)
\set branch case when random(1, 100) <= 85 then :home else random(1, :branches) end
\set aid (:branch - 1) * :accounts + random(1, :accounts)
\set tid (:home - 1) * 10 + random(1, 10)
\set delta random(-5000, 5000)
BEGIN\; UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid\; SELECT abalance FROM pgbench_accounts WHERE aid = :aid\; UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid\; UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :home\; INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :home, :aid, :delta, CURRENT_TIMESTAMP)\; END;
