-- Ways to end a transaction, with the trick of each. A line of dashes divides messages.

-- case: autocommit
INSERT INTO t VALUES (1)

-- case: explicit block
BEGIN; INSERT INTO t VALUES (1); INSERT INTO u VALUES (1);
----
COMMIT

-- case: constraints immediate, all closed, commit
BEGIN
----
INSERT INTO t VALUES (1)
----
SET CONSTRAINTS ALL IMMEDIATE
----
CLOSE ALL
----
COMMIT

-- case: the same in one message
BEGIN; INSERT INTO t VALUES (1); SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; COMMIT

-- case: the same without a block
INSERT INTO t VALUES (1); SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL

-- case: constraints immediate before the write
BEGIN; SET CONSTRAINTS ALL IMMEDIATE; INSERT INTO t VALUES (1); CLOSE ALL; COMMIT

-- case: constraints immediate again and again
BEGIN; INSERT INTO t VALUES (1); SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL;
SET CONSTRAINTS ALL DEFERRED; SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; COMMIT

-- case: constraints immediate in messages of their own
BEGIN; INSERT INTO t VALUES (1)
----
SET CONSTRAINTS ALL IMMEDIATE
----
CLOSE ALL; SET /* set */ ConSTRaints all IMMEDIATE
----
CLOSE ALL
----
COMMIT

-- case: writes before and after the early firing
BEGIN; INSERT INTO t VALUES (1); SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; INSERT INTO t VALUES (2); UPDATE t SET v = 'x'; COMMIT

-- case: early firing in a savepoint that is rolled back
BEGIN; INSERT INTO t VALUES (1); SAVEPOINT s; SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; ROLLBACK TO s; COMMIT

-- case: first write in a savepoint that is rolled back
BEGIN; SAVEPOINT s; INSERT INTO t VALUES (9); ROLLBACK TO s; INSERT INTO t VALUES (1); COMMIT

-- case: early firing inside a function
BEGIN; INSERT INTO t VALUES (1); SELECT early(); CLOSE ALL; COMMIT

-- case: early firing inside a function in SQL
BEGIN; INSERT INTO t VALUES (1); SELECT early_sql(); CLOSE ALL; COMMIT

-- case: early firing inside a DO block
INSERT INTO t VALUES (1); DO $$ BEGIN EXECUTE 'SET CONSTRAINTS ALL IMMEDIATE'; EXECUTE 'CLOSE ALL'; END $$

-- case: early firing by a deferred trigger of the user
INSERT INTO t VALUES (1, 'constraints')

-- case: a deferred trigger that writes
INSERT INTO t VALUES (1, 'write')

-- case: two transactions in one message
BEGIN; INSERT INTO t VALUES (1); COMMIT; BEGIN; INSERT INTO t VALUES (2); COMMIT; INSERT INTO t VALUES (3)

-- case: two transactions in one message, the second early
BEGIN; INSERT INTO t VALUES (1); COMMIT; BEGIN; INSERT INTO t VALUES (2); SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; COMMIT

-- case: commit and chain
BEGIN; INSERT INTO t VALUES (1); COMMIT AND CHAIN; INSERT INTO t VALUES (2); COMMIT

-- case: rollback and chain
BEGIN; INSERT INTO t VALUES (1); ROLLBACK AND CHAIN; INSERT INTO t VALUES (2); COMMIT

-- case: end
BEGIN; INSERT INTO t VALUES (1); END

-- case: discard all between transactions
INSERT INTO t VALUES (1)
----
DISCARD ALL
----
SELECT set_config('search_path', current_setting('search_path'), false); INSERT INTO t VALUES (2)

-- case: all cursors closed between transactions
INSERT INTO t VALUES (1)
----
CLOSE ALL
----
INSERT INTO t VALUES (2)

-- case: early firing in a DO block, and then by the message
BEGIN; INSERT INTO t VALUES (1); DO $$ BEGIN EXECUTE 'SET CON' || 'STRAINTS ALL IMMEDIATE'; END $$;
SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; COMMIT

-- case: the word in the message, not the command
BEGIN; INSERT INTO t VALUES (1, 'constraints constraints'); CLOSE ALL; COMMIT -- constraints

-- case: our cursor closed before the commit
INSERT INTO t VALUES (2)
----
BEGIN; INSERT INTO t VALUES (1); SET CONSTRAINTS ALL IMMEDIATE; CLOSE pgherd_commit; COMMIT

-- case: a cursor of the user's with our name
BEGIN; DECLARE pgherd_commit CURSOR FOR SELECT 1; INSERT INTO t VALUES (1); COMMIT

-- case: a cursor of the user's with our name, after the early firing
BEGIN; INSERT INTO t VALUES (1); SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; DECLARE pgherd_commit CURSOR FOR SELECT 1; COMMIT

-- case: procedure that commits
CALL loop_of_commits(false)

-- case: procedure that fires early and commits
CALL loop_of_commits(true)

-- case: procedure that commits in a loop over a query
CALL loop_over_query()

-- case: our schema first in the search path
SELECT set_config('search_path', 'pgherd,' || current_setting('search_path'), false)
----
CALL loop_of_commits(true)
----
BEGIN; INSERT INTO t VALUES (10); SELECT early(); CLOSE ALL; COMMIT

-- case: procedure whose name looks like a call stack
CALL "x line 3 at COMMIT constraints"()

-- case: do block that commits
DO $$ BEGIN INSERT INTO t VALUES (1); COMMIT; INSERT INTO t VALUES (2); END $$

-- case: custom settings set and reset
SET pgherd.armed = on; SET pgherd.gid = 1; BEGIN; INSERT INTO t VALUES (1); SET LOCAL search_path = pg_temp; COMMIT

-- case: synchronous_commit
SET synchronous_commit = off; INSERT INTO t VALUES (1)
