/*-------------------------------------------------------------------------
 *
 * hook.c
 *	  Certifies the transaction that is committing, as pgherd.certify() does
 *	  in SQL mode.
 *
 * PostgreSQL calls it in COMMIT after the user's deferred triggers and
 * holdable cursors, when no code of a user runs any more.  It returns when
 * the transaction has its place in the total order and all its predecessors
 * are visible; it raises otherwise:
 *	 40001	it lost against a conflicting writeset
 *	 25006	outside the primary component
 *	 08007	the outcome cannot be told here, or it was ordered to commit but
 *			could not be finished here: then the node applies it from the log
 *			like any other member
 *
 * Interrupts are held from the request until the transaction has its place,
 * and cancels until the commit record is written.
 *
 *-------------------------------------------------------------------------
 */
#include "pgherd_native.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

/* What the log has decided: commit, with this place in the chain. */
typedef struct Verdict
{
	bool		known;
	int64		gid;
	int64		prev;
	char		kind;			/* of the predecessor: N none to wait for, L local, B batch */
	int64		name;			/* its xid, or its number */
} Verdict;

typedef struct Commit
{
	FullTransactionId xid;
	PgherdNode *node;
	bool		refused;		/* the sidecar says that it will not commit */
	Verdict		verdict;
} Commit;

PGHERD_NORETURN static void
outcome_unknown(Commit *c, const char *cause)
{
	ereport(ERROR,
			errcode(ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN),
			c->verdict.known
			? errmsg("the transaction could not be finished here, but it is committed as GID " INT64_FORMAT,
					 c->verdict.gid)
			: errmsg("the outcome of this transaction is not known here"),
			errdetail("Its token is %d." INT64_FORMAT "." UINT64_FORMAT ". Cause: %s", c->node->member,
					  c->node->incarnation, U64FromFullTransactionId(c->xid), cause),
			errhint("Do not repeat it before you know: SELECT pgherd.transaction_status(token) answers on any member."));
}

/* As pgherd.refuse_write(). */
PGHERD_NORETURN static void
refuse_write(const char *reason)
{
	ereport(ERROR,
			errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
			errmsg("this node takes no writes: %s", reason),
			errhint("Connect to a member whose state is \"primary\", or wait until this one has caught up."));
}

/* The sidecar's own word. */
PGHERD_NORETURN static void
throw_answer(PgherdAnswer *answer)
{
	ereport(ERROR,
			errcode(answer->sqlstate),
			errmsg_internal("%s", answer->message),
			answer->detail != NULL ? errdetail_internal("%s", answer->detail) : 0,
			answer->hint != NULL ? errhint("%s", answer->hint) : 0);
}

static void
ask(Commit *c, PgherdAnswer *answer, const char *request, int length, bool interruptible)
{
	pgherd_link_ask(answer, request, length, interruptible);
	if (answer->reply == PGHERD_LOST)
		outcome_unknown(c, answer->message);
}

/*
 * After a cancel, a timeout or a deadlock report: may this transaction go on
 * waiting?  Raises 08007 when the applier needs its locks (C9).
 */
static void
after_interruption(Commit *c)
{
	PgherdAnswer answer;
	char	   *request;

	if (!pgherd_link_open(c->node))
		outcome_unknown(c, "its sidecar does not answer");
	if (!c->verdict.known)
		return;
	request = psprintf("Y %s " UINT64_FORMAT, c->node->secret, U64FromFullTransactionId(c->xid));
	ask(c, &answer, request, strlen(request), false);
	if (answer.reply == PGHERD_ERROR)
		throw_answer(&answer);
	if (strcmp(answer.tag, "YIELD") == 0)
		outcome_unknown(c, "it gives way to a change ordered before it");
}

static void
read_verdict(Commit *c, const char *tag)
{
	char		kind[2];
	long long	gid;
	long long	prev;
	long long	name = 0;
	int			fields = sscanf(tag, "C %lld %lld %1[NLB] %lld", &gid, &prev, kind, &name);

	if (fields < 3 || (fields == 3 && kind[0] != 'N') || gid <= prev || prev < 0)
		outcome_unknown(c, "its sidecar has sent what is no verdict");
	c->verdict.known = true;
	c->verdict.gid = gid;
	c->verdict.prev = prev;
	c->verdict.kind = kind[0];
	c->verdict.name = name;
}

/* Has the transaction ordered; an interruption only makes it ask again. */
static void
await_verdict(Commit *c, StringInfo request)
{
	PgherdAnswer answer;

	ask(c, &answer, request->data, request->len, true);
	while (answer.reply == PGHERD_INTERRUPTED)
	{
		char	   *again = psprintf("R %s " UINT64_FORMAT, c->node->secret, U64FromFullTransactionId(c->xid));

		after_interruption(c);
		ask(c, &answer, again, strlen(again), true);
	}
	if (answer.reply == PGHERD_ERROR)
	{
		/* A connection that has failed says nothing about what was sent through it. */
		if (ERRCODE_TO_CATEGORY(answer.sqlstate) == ERRCODE_CONNECTION_EXCEPTION &&
			answer.sqlstate != ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN)
			outcome_unknown(c, answer.message);
		c->refused = true;
		throw_answer(&answer);
	}
	read_verdict(c, answer.tag);
}

static void
wait_for_lock(Commit *c, LOCKTAG *tag, LOCKMODE mode)
{
	while (!pgherd_wait_for_lock(tag, mode))
		after_interruption(c);
}

/* As pg_xact_status() says it, which is bound to no snapshot. */
static bool
has_committed(int64 xid)
{
	LOCAL_FCINFO(call, 1);
	Datum		status;

	InitFunctionCallInfoData(*call, NULL, 1, InvalidOid, NULL, NULL);
	call->args[0].value = UInt64GetDatum((uint64) xid);
	call->args[0].isnull = false;
	status = pg_xact_status(call);
	return !call->isnull && strcmp(TextDatumGetCString(status), "committed") == 0;
}

/*
 * Is the predecessor visible here, now that its token is free?  If not, it
 * has died, and the sidecar applies it from the log (C8).
 */
static bool
predecessor_is_visible(Commit *c)
{
	bool		applied;

	if (c->verdict.kind == 'L')
		return has_committed(c->verdict.name);
	PushActiveSnapshot(GetLatestSnapshot());
	applied = pgherd_is_applied(c->verdict.prev);
	PopActiveSnapshot();
	return applied;
}

/* Visibility order is GID order: see pgherd.wait_for_predecessor(). */
static void
wait_for_predecessor(Commit *c)
{
	int64		key = c->verdict.name + (c->verdict.kind == 'L' ? PGHERD_XID_TOKEN : PGHERD_BATCH_TOKEN);
	PgherdAnswer answer;
	LOCKTAG		tag;

	pgherd_set_token(&tag, key);
	for (;;)
	{
		char	   *request;

		wait_for_lock(c, &tag, ShareLock);
		if (predecessor_is_visible(c))
			return;
		request = psprintf("P %s " UINT64_FORMAT " " INT64_FORMAT, c->node->secret,
						   U64FromFullTransactionId(c->xid), c->verdict.prev);
		ask(c, &answer, request, strlen(request), true);
		if (answer.reply == PGHERD_ERROR)
			throw_answer(&answer);
		if (answer.reply == PGHERD_DONE)
			return;
		after_interruption(c);
	}
}

/* Takes the transaction's place in the commit chain. */
static void
take_place(Commit *c)
{
	LOCKTAG		tag;
	char		gid[32];

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, pgherd_tables()->applied);
	wait_for_lock(c, &tag, RowExclusiveLock);
	AcceptInvalidationMessages();
	pgherd_add_applied(c->verdict.gid, c->verdict.prev, c->xid);
	if (c->verdict.kind != 'N')
		wait_for_predecessor(c);

	/* The majority has it on disk; only this transaction may skip its own flush (C13). */
	pgherd.synchronous = synchronous_commit;
	pgherd.asynchronous = true;
	synchronous_commit = SYNCHRONOUS_COMMIT_OFF;

	/* For last_commit_gid().  It counts when this transaction commits, and else is what it was. */
	snprintf(gid, sizeof(gid), INT64_FORMAT, c->verdict.gid);
	(void) set_config_option("pgherd.last_commit", gid, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SET, true, 0, false);
}

/* From the request on an error must not read as an abort, unless the sidecar says that it is one. */
static void
order_and_finish(Commit *c, StringInfo request)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		await_verdict(c, request);
		take_place(c);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		if (c->refused)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (error->sqlerrcode == ERRCODE_TRANSACTION_RESOLUTION_UNKNOWN)
			PG_RE_THROW();
		FlushErrorState();
		outcome_unknown(c, error->message);
	}
	PG_END_TRY();
}

/* The SQL functions do it all: commands, pieces, a token that a stranger holds; and they refuse what a copy writes. */
static void
leave_to_sql(void)
{
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute("SELECT pgherd.keep_session()", false, 0) != SPI_OK_SELECT ||
		SPI_execute("SELECT pgherd.certify()", false, 0) != SPI_OK_SELECT)
		elog(ERROR, "pgherd.certify() has not returned");
	SPI_finish();
}

/*
 * As pgherd.keep_session(): under exit_on_error an interruption of COMMIT, or
 * a conflict, would end the session before it is caught here, and lock_timeout
 * would only interrupt waits that must go on.  No code of a user's can see the
 * variables before they are back, so they are set without set_config_option(),
 * which costs more.
 */
static void
keep_session(void)
{
	pgherd.keeping = true;
	pgherd.exit_on_error = ExitOnAnyError;
	pgherd.lock_timeout = LockTimeout;
	ExitOnAnyError = false;
	LockTimeout = 0;
#if PG_VERSION_NUM >= 170000
	disable_timeout(TRANSACTION_TIMEOUT, false);	/* the transaction ends here in any case */
#endif
}

static void
certify(FullTransactionId xid)
{
	Commit		c = {.xid = xid};
	StringInfoData request;
	PgherdRequestKind kind;

	c.node = pgherd_read_node();
	if (c.node == NULL)
		refuse_write("it has never been started");
	initStringInfo(&request);
	kind = c.node->elsewhere ? PGHERD_LEFT_TO_SQL : pgherd_make_request(xid, c.node, &request);
	if (kind == PGHERD_NOTHING)
		return;
	if (XactReadOnly)
		ereport(ERROR,
				errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("a transaction that has written replicated tables cannot become read-only"),
				errhint("Leave out SET TRANSACTION READ ONLY."));
	if (kind == PGHERD_LEFT_TO_SQL ||
		!pgherd_try_token((int64) U64FromFullTransactionId(xid) + PGHERD_XID_TOKEN))
	{
		/* What is unusual is collected first, and certify() says when it is sent (victim.c). */
		pgherd.committing = kind != PGHERD_LEFT_TO_SQL;
		leave_to_sql();
		pgherd.committing = true;
	}
	else
	{
		keep_session();
		CHECK_FOR_INTERRUPTS();
		HOLD_INTERRUPTS();
		pgherd.committing = true;
		if (!pgherd_link_open(c.node))
			refuse_write("its sidecar does not answer");
		order_and_finish(&c, &request);
		RESUME_INTERRUPTS();
	}

	/*
	 * A cancel would read as an abort.  The session can be ended: what COMMIT
	 * does next may wait for another server, and all that is ordered later
	 * waits for this transaction.
	 */
	HOLD_CANCEL_INTERRUPTS();
	pgherd.holding = true;
}

void
pgherd_before_commit(FullTransactionId xid)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "pgherd commit", ALLOCSET_DEFAULT_SIZES);
	MemoryContext before = MemoryContextSwitchTo(context);
	Oid			user;
	int			security;

	pgherd_become_owner(&user, &security);
	CommandCounterIncrement();
	PushActiveSnapshot(GetTransactionSnapshot());
	certify(xid);
	PopActiveSnapshot();
	SetUserIdAndSecContext(user, security);
	MemoryContextSwitchTo(before);
	MemoryContextDelete(context);
}
