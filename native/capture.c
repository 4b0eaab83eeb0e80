/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  The trigger that captures what a statement has changed.
 *
 * It fires where the generated SQL trigger functions would, after the
 * statement, and captures its rows if the plan of their table can be evaluated
 * here.  All else goes to the generated function, which is called with the
 * same trigger data: rows whose identity has changed, a node that takes no
 * writes, an isolation level that is refused.  So there is one place for each
 * error message.
 *
 *-------------------------------------------------------------------------
 */
#include "pgherd_native.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(pgherd_native_capture);

/* Hands the call over to the generated function. */
static Datum
call_function(Oid function, FunctionCallInfo fcinfo)
{
	LOCAL_FCINFO(call, 0);
	FmgrInfo	flinfo;
	Datum		result;

	fmgr_info(function, &flinfo);
	InitFunctionCallInfoData(*call, &flinfo, 0, InvalidOid, fcinfo->context, NULL);
	result = FunctionCallInvoke(call);
	fcinfo->isnull = call->isnull;
	return result;
}

/* Captured together are so many rows at most, as in SQL ... */
#define CHUNK_ROWS		1000
/* ... and here no more when their records are so long, since they are all in memory. */
#define CHUNK_BYTES		(1024 * 1024)

/* The transition tables, each read at a place of its own: other triggers read them, too. */
typedef struct Transition
{
	Tuplestorestate *store[2];	/* of old and new rows; NULL if there are none */
	int			pointer[2];
	TupleTableSlot *slot[2];
} Transition;

static void
open_transition(Transition *t, PgherdPlan *plan, TriggerData *data)
{
	t->store[0] = data->tg_oldtable;
	t->store[1] = data->tg_newtable;
	t->slot[0] = plan->old_slot;
	t->slot[1] = plan->new_slot;
	for (int i = 0; i < 2; i++)
		if (t->store[i] != NULL)
			t->pointer[i] = tuplestore_alloc_read_pointer(t->store[i], EXEC_FLAG_REWIND);
}

static void
rewind_transition(Transition *t)
{
	for (int i = 0; i < 2; i++)
		if (t->store[i] != NULL)
		{
			tuplestore_select_read_pointer(t->store[i], t->pointer[i]);
			tuplestore_rescan(t->store[i]);
		}
}

/* Puts the next row, or the next pair of them, into the slots; false if there is none. */
static bool
fetch(Transition *t)
{
	bool		found = false;

	for (int i = 0; i < 2; i++)
		if (t->store[i] != NULL)
		{
			tuplestore_select_read_pointer(t->store[i], t->pointer[i]);
			found = tuplestore_gettupleslot(t->store[i], true, false, t->slot[i]);
		}
	return found;
}

/* The value lasts until the next row. */
static Datum
evaluate(ExprState *state, ExprContext *econtext)
{
	bool		isnull;
	Datum		value = ExecEvalExprSwitchContext(state, econtext, &isnull);

	if (isnull)
		elog(ERROR, "an expression of pgherd's is null");
	return value;
}

/*
 * Forgets the rows that were captured last.  The slots come first, because
 * their tuples lie in the memory that is given back.
 */
static void
forget_rows(PgherdPlan *plan)
{
	ExecClearTuple(plan->old_slot);
	ExecClearTuple(plan->new_slot);
	ResetExprContext(plan->econtext);
	MemoryContextReset(plan->chunk);
}

/* False if one of the rows is not for this module. */
static bool
condition_holds(PgherdPlan *plan, Transition *t)
{
	bool		holds = true;

	if (plan->condition == NULL)
		return true;
	rewind_transition(t);
	while (holds && fetch(t))
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		holds = DatumGetBool(ExecEvalExprSwitchContext(plan->condition, plan->econtext, &isnull)) && !isnull;
		ResetExprContext(plan->econtext);
	}
	return holds;
}

/* The keys of a row behind those that others carry; it may have none. */
static void
append_keys(StringInfo keys, PgherdPlan *plan)
{
	bool		isnull;
	Datum		value = ExecEvalExprSwitchContext(plan->keys, plan->econtext, &isnull);
	text	   *t = isnull ? NULL : DatumGetTextPP(value);

	if (t == NULL || VARSIZE_ANY_EXHDR(t) == 0)
		return;
	appendStringInfoChar(keys, ',');
	appendBinaryStringInfo(keys, VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
}

/* The next rows as one captured row, which has no number yet; false if there are none. */
static bool
capture_chunk(PgherdPlan *plan, Transition *t, PgherdRow *row)
{
	ParamExternData *image = &plan->params->params[0];
	StringInfoData keys;
	Datum		pks[CHUNK_ROWS];
	Datum		recs[CHUNK_ROWS];
	Size		bytes = 0;
	int			count = 0;

	initStringInfo(&keys);
	appendStringInfoString(&keys, plan->table_keys);
	while (count < CHUNK_ROWS && bytes < CHUNK_BYTES && fetch(t))
	{
		CHECK_FOR_INTERRUPTS();
		if (plan->image != NULL)
			image->value = evaluate(plan->image, plan->econtext);
		append_keys(&keys, plan);
		pks[count] = evaluate(plan->pk, plan->econtext);
		recs[count] = datumCopy(evaluate(plan->rec, plan->econtext), false, -1);
		bytes += VARSIZE_ANY(DatumGetPointer(recs[count]));
		count++;
		ResetExprContext(plan->econtext);
	}
	if (count == 0)
		return false;
	row->tab = plan->tab;
	row->keys = PointerGetDatum(cstring_to_text_with_len(keys.data, keys.len));
	row->pks = PointerGetDatum(construct_array(pks, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
											   TYPALIGN_DOUBLE));
	row->recs = PointerGetDatum(construct_array(recs, count, TEXTOID, -1, false, TYPALIGN_INT));
	return true;
}

/* Captures the rows of the statement; false if the SQL function has to. */
static bool
capture(PgherdPlan *plan, TriggerData *data)
{
	FullTransactionId xid = GetTopFullTransactionIdIfAny();
	MemoryContext before;
	PgherdNode *node;
	PgherdRow	row;
	Transition	t;
	int			nest = 0;
	bool		captured;

	if (XactIsoLevel == XACT_SERIALIZABLE || !FullTransactionIdIsValid(xid))
		return false;
	open_transition(&t, plan, data);
	before = MemoryContextSwitchTo(plan->chunk);
	CommandCounterIncrement();	/* what was captured before counts */
	PushActiveSnapshot(GetTransactionSnapshot());
	node = pgherd_read_node();
	captured = node != NULL && node->writable;
	if (captured)
	{
		if (plan->settings != NULL)
		{
			nest = NewGUCNestLevel();
			ProcessGUCArray(plan->settings, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE);
		}
		captured = condition_holds(plan, &t);
		if (captured)
		{
			row.seq = pgherd_last_seq(xid);
			row.base = pgherd_last_gid();
			rewind_transition(&t);
			while (capture_chunk(plan, &t, &row))
			{
				row.seq++;
				pgherd_add_row(xid, &row);
				forget_rows(plan);
			}
		}
		if (plan->settings != NULL)
			AtEOXact_GUC(true, nest);
	}
	PopActiveSnapshot();
	MemoryContextSwitchTo(before);
	return captured;
}

/*
 * The same, and the plan holds nothing afterwards.  A domain may be checked by
 * a function that changes this table: what it changes is not for this plan.
 */
static bool
capture_alone(PgherdPlan *plan, TriggerData *data)
{
	volatile bool captured = false;

	plan->busy = true;
	PG_TRY();
	{
		captured = capture(plan, data);
	}
	PG_CATCH();
	{
		plan->busy = false;
		forget_rows(plan);
		PG_RE_THROW();
	}
	PG_END_TRY();
	plan->busy = false;
	forget_rows(plan);
	return captured;
}

Datum
pgherd_native_capture(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	int			kind;
	Tuplestorestate *counted;
	PgherdPlan *plan;
	int64		count;
	Oid			function;
	Oid			user;
	int			context;
	bool		done = false;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(data->tg_event) ||
		!TRIGGER_FIRED_FOR_STATEMENT(data->tg_event))
		ereport(ERROR,
				errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				errmsg("pgherd's trigger was not called as it is meant to be"));
	kind = data->tg_event & TRIGGER_EVENT_OPMASK;
	counted = kind == TRIGGER_EVENT_DELETE ? data->tg_oldtable : data->tg_newtable;
	if (counted == NULL || (kind == TRIGGER_EVENT_UPDATE && data->tg_oldtable == NULL))
		ereport(ERROR,
				errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				errmsg("pgherd's trigger needs its transition tables"));
	count = tuplestore_tuple_count(counted);
	/* A trigger of another partition may have let the new row of an UPDATE vanish. */
	if (count == 0 && (kind != TRIGGER_EVENT_UPDATE || tuplestore_tuple_count(data->tg_oldtable) == 0))
		return PointerGetDatum(NULL);

	pgherd_become_owner(&user, &context);
	plan = pgherd_plan(data->tg_relation, kind);
	function = plan->function;
	if (!plan->busy && plan->usable && (count == 1 || plan->many) &&
		(kind != TRIGGER_EVENT_UPDATE || tuplestore_tuple_count(data->tg_oldtable) == count))
		done = capture_alone(plan, data);
	SetUserIdAndSecContext(user, context);
	return done ? PointerGetDatum(NULL) : call_function(function, fcinfo);
}
