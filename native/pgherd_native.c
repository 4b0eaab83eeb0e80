/*-------------------------------------------------------------------------
 *
 * pgherd_native.c
 *	  Entry points of the native module: loading, arming, events of the
 *	  transaction.
 *
 * Nothing has to be preloaded.  A session loads the library with the first
 * trigger that needs it, which is before anything that the callbacks here
 * must see.  Where the library is missing that trigger fails, and with it
 * the write: no change can pass uncertified.
 *
 *-------------------------------------------------------------------------
 */
#include "pgherd_native.h"

#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#if SIZEOF_VOID_P < 8
#error "pgherd's native module keeps keys in Datums: it needs a 64-bit server"
#endif

PG_MODULE_MAGIC;

PgherdBackend pgherd = {.link = {.sock = PGINVALID_SOCKET}};

static ExecutorEnd_hook_type previous_executor_end = NULL;

PG_FUNCTION_INFO_V1(pgherd_native_interface);
PG_FUNCTION_INFO_V1(pgherd_native_arm);

void		_PG_init(void);

/* The version that 036_native.sql asks for. */
Datum
pgherd_native_interface(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(PGHERD_NATIVE_INTERFACE);
}

/*
 * Trigger of the capture tables, before the first row of a transaction is
 * added, or the note that its checks have begun: there may be something to
 * certify.  If that is rolled back to a savepoint, the hook finds no row.
 */
Datum
pgherd_native_arm(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) || !TRIGGER_FIRED_BY_INSERT(data->tg_event))
		ereport(ERROR,
				errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				errmsg("pgherd's trigger was not called as it is meant to be"));
	pgherd_arm(GetTopFullTransactionId());
	return PointerGetDatum(data->tg_trigtuple);
}

/*
 * The commit record is written: what was set for it alone goes back to what
 * it was.  After an error, which another module may have caught, PostgreSQL
 * has reset its count of holds by itself.
 */
static void
end_of_transaction(void)
{
	if (pgherd.asynchronous)
		synchronous_commit = pgherd.synchronous;
	if (pgherd.keeping)
	{
		ExitOnAnyError = pgherd.exit_on_error;
		LockTimeout = pgherd.lock_timeout;
	}
	if (pgherd.holding && QueryCancelHoldoffCount > 0)
		RESUME_CANCEL_INTERRUPTS();
	pgherd.certified = false;
	pgherd.committing = false;
	pgherd.asynchronous = false;
	pgherd.keeping = false;
	pgherd.holding = false;
	pgherd.armed = InvalidFullTransactionId;
}

/* Does this transaction, the session's own, have captured rows? */
bool
pgherd_is_armed(FullTransactionId xid)
{
	return FullTransactionIdIsValid(xid) && FullTransactionIdEquals(pgherd.armed, xid);
}

/* It was registered twice, and the first call certifies. */
static void
before_commit(XactEvent event, void *arg)
{
	FullTransactionId xid = GetTopFullTransactionIdIfAny();

	if (event == XACT_EVENT_PRE_COMMIT && pgherd_is_armed(xid) && !pgherd.certified)
	{
		pgherd.certified = true;
		pgherd_before_commit(xid);
	}
}

/*
 * PostgreSQL calls first what was registered last, and postgres_fdw, for
 * instance, commits its remote side there: so this one comes to the front.
 * Another module's callback may have us do so when the calls have begun, and
 * it is passed over then.  That is why there is one that stays in its place.
 */
static void
come_first(void)
{
	if (pgherd.certified)		/* it may be just this call that is running */
		return;
	UnregisterXactCallback(before_commit, &pgherd);
	RegisterXactCallback(before_commit, &pgherd);
}

void
pgherd_arm(FullTransactionId xid)
{
	pgherd.armed = xid;
	come_first();
}

/* The statement may have used another module for the first time in this session. */
static void
on_executor_end(QueryDesc *query)
{
	if (previous_executor_end)
		previous_executor_end(query);
	else
		standard_ExecutorEnd(query);
	if (pgherd_is_armed(GetTopFullTransactionIdIfAny()))
		come_first();
}

/* Are any rows left that it has captured?  They may be rolled back to a savepoint. */
static bool
has_rows(FullTransactionId xid)
{
	int64		seq;

	CommandCounterIncrement();
	PushActiveSnapshot(GetTransactionSnapshot());
	seq = pgherd_last_seq(xid);
	PopActiveSnapshot();
	return seq > 0;
}

static void
on_transaction_event(XactEvent event, void *arg)
{
	FullTransactionId xid;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			before_commit(event, NULL);
			break;
		case XACT_EVENT_PRE_PREPARE:
			xid = GetTopFullTransactionIdIfAny();
			if (pgherd_is_armed(xid) && has_rows(xid))
				ereport(ERROR,
						errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("cannot PREPARE a transaction that has written replicated tables"),
						errhint("Two-phase commit is not supported: COMMIT it."));
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			end_of_transaction();
			break;
		default:				/* parallel workers change nothing */
			break;
	}
}

/* A table was changed: one of ours, or one that there are plans for. */
static void
on_table_change(Datum arg, Oid relid)
{
	PgherdTables *t = &pgherd.tables;

	if (!OidIsValid(relid) || relid == t->capture[0] || relid == t->capture[1] ||
		relid == t->capture_order[0] || relid == t->capture_order[1] ||
		relid == t->applied || relid == t->applied_gid || relid == t->node)
		t->valid = false;
	pgherd_forget_plans(relid);
}

static void
on_object_change(Datum arg, int cache, uint32 hash)
{
	pgherd_forget_plans_with(cache, hash);
}

void
_PG_init(void)
{
	RegisterXactCallback(on_transaction_event, NULL);
	previous_executor_end = ExecutorEnd_hook;
	ExecutorEnd_hook = on_executor_end;
	CacheRegisterRelcacheCallback(on_table_change, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, on_object_change, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, on_object_change, (Datum) 0);
	CacheRegisterSyscacheCallback(CONSTROID, on_object_change, (Datum) 0);
	pgherd_watch_errors();
}
