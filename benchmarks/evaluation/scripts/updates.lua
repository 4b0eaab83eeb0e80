-- The transaction of updates.sql for sysbench, whose driver speaks to Galera.
sysbench.cmdline.options = {rows = {"Rows of each of the ten tables that may be hit", 10000}}

function thread_init()
   connection = sysbench.sql.driver():connect()
end

function event()
   connection:query("BEGIN")
   for _ = 1, 10 do
      connection:query(string.format("UPDATE u%d SET v = v + 1 WHERE id = %d",
         sysbench.rand.uniform(1, 10), sysbench.rand.uniform(1, sysbench.opt.rows)))
   end
   connection:query("COMMIT")
end

function thread_done()
   connection:disconnect()
end
