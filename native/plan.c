/*-------------------------------------------------------------------------
 *
 * plan.c
 *	  How rows of a table are captured: read, not computed.
 *
 * For each table and kind of statement pgherd.capture_plans (036_native.sql)
 * holds the expressions that the generated SQL function evaluates: the keys,
 * the hash of the primary key and the record of a row `n`, or of a row `o`
 * that has become `n`.  They are parsed once in a session and evaluated by
 * PostgreSQL's own evaluator.  Hash functions, seeds, names and formats so
 * are those of the SQL code by construction.
 *
 * A plan lasts until PostgreSQL reports a change of the table, or of a
 * function or a domain that was written into an expression, or the SQL
 * function that belongs to it has been replaced.  The function is in a cache,
 * so to ask for its version costs next to nothing; a row of the plan is only
 * replaced together with it, and is read so that it is no older.
 *
 *-------------------------------------------------------------------------
 */
#include "pgherd_native.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/plannodes.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "parser/parse_coerce.h"
#include "parser/parse_collate.h"
#include "parser/parse_expr.h"
#include "parser/parse_param.h"
#include "parser/parse_relation.h"
#include "parser/parser.h"
#include "rewrite/rewriteManip.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* The columns that are read of pgherd.capture_plans; the last two name the version of the row. */
enum
{
	PLAN_FUNCTION, PLAN_TAB, PLAN_TABLE_KEYS, PLAN_IMAGE, PLAN_CONDITION, PLAN_KEYS, PLAN_PK, PLAN_REC,
	PLAN_MANY, PLAN_CTID, PLAN_XMIN,
	PLAN_TEXTS
};

/* Called for invalidation messages: nothing may be freed or looked up here. */
void
pgherd_forget_plans(Oid relid)
{
	HASH_SEQ_STATUS status;
	PgherdPlan *plan;

	if (pgherd.plans == NULL)
		return;
	hash_seq_init(&status, pgherd.plans);
	while ((plan = hash_seq_search(&status)) != NULL)
		if (!OidIsValid(relid) || plan->key.relid == relid)
			plan->valid = false;
}

/* The same, for a change of a function, a type or a constraint; 0 stands for all of these. */
void
pgherd_forget_plans_with(int cache, uint32 hash)
{
	HASH_SEQ_STATUS status;
	PgherdPlan *plan;
	ListCell   *cell;

	if (pgherd.plans == NULL)
		return;
	hash_seq_init(&status, pgherd.plans);
	while ((plan = hash_seq_search(&status)) != NULL)
	{
		if (plan->domains)		/* nothing tells which constraints, and which functions of theirs */
			plan->valid = false;
		foreach(cell, plan->items)
		{
			PlanInvalItem *item = lfirst(cell);

			if (item->cacheId == cache && (hash == 0 || item->hashValue == hash))
				plan->valid = false;
		}
	}
}

/* Is the SQL function still the one that the plan was read with? */
static bool
function_is_same(PgherdPlan *plan)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(plan->function));
	bool		same;

	if (!HeapTupleIsValid(tuple))
		return false;
	same = plan->function_xmin == HeapTupleHeaderGetRawXmin(tuple->t_data) &&
		ItemPointerEquals(&plan->function_tid, &tuple->t_self);
	ReleaseSysCache(tuple);
	return same;
}

static void
read_function(PgherdPlan *plan)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(plan->function));
	bool		isnull;
	Datum		settings;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "the capture function of table %u is missing", plan->key.relid);
	plan->function_xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);
	plan->function_tid = tuple->t_self;
	settings = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proconfig, &isnull);
	plan->settings = isnull ? NULL : DatumGetArrayTypePCopy(settings);
	ReleaseSysCache(tuple);
}

/* Is a value made one of a domain?  What that checks is written into the expression. */
static bool
reads_domain(Node *node, void *context)
{
	if (node == NULL)
		return false;
	return IsA(node, CoerceToDomain) || expression_tree_walker(node, reads_domain, context);
}

/*
 * One expression over the rows `o` and `n` of the table and the image $1,
 * ready to be evaluated with `o` as inner and `n` as outer tuple.
 *
 * NULL if there is no such text.  The plan is not usable if it holds a
 * subquery, which needs an executor.
 */
static ExprState *
compile(PgherdPlan *plan, Relation rel, const char *text, Oid type)
{
	static const char *const aliases[] = {"o", "n"};
	static const Oid image_type[] = {TEXTOID};
	ParseState *pstate;
	List	   *parsed;
	SelectStmt *select;
	ResTarget  *target;
	Node	   *expr;
	Expr	   *planned;
	List	   *relations = NIL;
	List	   *items = NIL;

	if (text == NULL)
		return NULL;
	parsed = raw_parser(psprintf("SELECT %s", text), RAW_PARSE_DEFAULT);
	select = castNode(SelectStmt, linitial_node(RawStmt, parsed)->stmt);
	target = linitial_node(ResTarget, select->targetList);
	pstate = make_parsestate(NULL);
	pstate->p_sourcetext = text;
	setup_parse_fixed_parameters(pstate, image_type, lengthof(image_type));
	for (int i = 0; i < 2; i++)
	{
		ParseNamespaceItem *item = addRangeTableEntryForRelation(pstate, rel, AccessShareLock,
																 makeAlias(aliases[i], NIL), false, false);

		addNSItemToQuery(pstate, item, false, true, true);
	}
	expr = transformExpr(pstate, target->val, EXPR_KIND_SELECT_TARGET);
	expr = coerce_to_target_type(pstate, expr, exprType(expr), type, -1,
								 COERCION_ASSIGNMENT, COERCE_IMPLICIT_CAST, -1);
	if (expr == NULL)
		elog(ERROR, "an expression of pgherd's has not the type %s", format_type_be(type));
	assign_expr_collations(pstate, expr);
	free_parsestate(pstate);
	if (contain_subplans(expr))
	{
		plan->usable = false;
		return NULL;
	}
	ChangeVarNodes(expr, 1, INNER_VAR, 0);
	ChangeVarNodes(expr, 2, OUTER_VAR, 0);
	planned = expression_planner_with_deps((Expr *) expr, &relations, &items);
	plan->items = list_concat(plan->items, items);
	plan->domains |= reads_domain((Node *) planned, NULL);
	return ExecInitExpr(planned, NULL);
}

/*
 * The row of pgherd.capture_plans as texts, `count` of them; false if there is
 * none.  It is read as it is now, under no snapshot of the user's: the table
 * and the SQL function are, too.
 */
static bool
read_plan(PgherdPlanKey *key, MemoryContext context, char **texts, int count)
{
	static const char *const kinds[] = {"INSERT", "DELETE", "UPDATE"};
	Oid			types[2] = {OIDOID, TEXTOID};
	Datum		values[2];
	bool		found;

	StaticAssertStmt(TRIGGER_EVENT_INSERT == 0 && TRIGGER_EVENT_DELETE == 1 && TRIGGER_EVENT_UPDATE == 2,
					 "kinds are in the order of trigger events");
	values[0] = ObjectIdGetDatum(key->relid);
	values[1] = CStringGetTextDatum(kinds[key->kind]);
	PushActiveSnapshot(GetLatestSnapshot());
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args("SELECT p.function, p.tab, p.table_keys, p.image, p.condition, p.keys, p.pk, p.rec,"
							  " p.many, p.ctid, p.xmin"
							  " FROM pgherd.capture_plans p"
							  " WHERE p.relid OPERATOR(pg_catalog.=) $1 AND p.kind OPERATOR(pg_catalog.=) $2",
							  2, types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "pgherd.capture_plans cannot be read");
	found = SPI_processed == 1;
	for (int i = 0; found && i < count; i++)
	{
		char	   *text = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i + 1);

		texts[i] = text == NULL ? NULL : MemoryContextStrdup(context, text);
	}
	SPI_finish();
	PopActiveSnapshot();
	return found;
}

/*
 * Reads the row and the function that belong together.  Both are replaced in
 * one transaction, which may commit between the two looks: the row that was
 * there before the function was read must still be there afterwards.
 */
static void
read_both(PgherdPlan *plan, Relation rel, char **texts)
{
	char	   *again[PLAN_TEXTS];

	for (;;)
	{
		if (!read_plan(&plan->key, plan->context, texts, PLAN_TEXTS))
			ereport(ERROR,
					errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the native module knows nothing of table \"%s\"", RelationGetRelationName(rel)),
					errhint("Start the sidecar of this node anew.  In a copy of its database: SELECT pgherd.uninstall()"
							" makes an ordinary one of it."));
		plan->function = DatumGetObjectId(DirectFunctionCall1(oidin, CStringGetDatum(texts[PLAN_FUNCTION])));
		read_function(plan);
		if (read_plan(&plan->key, plan->context, again, PLAN_TEXTS) &&
			strcmp(again[PLAN_CTID], texts[PLAN_CTID]) == 0 && strcmp(again[PLAN_XMIN], texts[PLAN_XMIN]) == 0)
			return;
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Names mean here what they mean to the SQL function: what its settings say,
 * or else PostgreSQL's own.  What a user's session calls `text`, say, would
 * run as the owner.  The caller ends the level that it returns; after an error
 * PostgreSQL does.
 */
static int
begin_names(void)
{
	int			nest = NewGUCNestLevel();

	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	return nest;
}

static void
build(PgherdPlan *plan, Relation rel)
{
	char	   *texts[PLAN_TEXTS];
	TupleDesc	desc;

	read_both(plan, rel, texts);
	if (plan->settings != NULL)
		ProcessGUCArray(plan->settings, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE);
	if (texts[PLAN_KEYS] == NULL)
		return;					/* the SQL function does it all */
	plan->usable = true;
	plan->many = strcmp(texts[PLAN_MANY], "t") == 0;
	plan->tab = CStringGetTextDatum(texts[PLAN_TAB]);
	plan->table_keys = texts[PLAN_TABLE_KEYS];
	plan->image = compile(plan, rel, texts[PLAN_IMAGE], TEXTOID);
	plan->condition = compile(plan, rel, texts[PLAN_CONDITION], BOOLOID);
	plan->keys = compile(plan, rel, texts[PLAN_KEYS], TEXTOID);
	plan->pk = compile(plan, rel, texts[PLAN_PK], INT8OID);
	plan->rec = compile(plan, rel, texts[PLAN_REC], TEXTOID);
	plan->params = makeParamList(1);
	plan->params->params[0].isnull = false;
	plan->params->params[0].pflags = PARAM_FLAG_CONST;
	plan->params->params[0].ptype = TEXTOID;
	desc = CreateTupleDescCopyConstr(RelationGetDescr(rel));
	plan->old_slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	plan->new_slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	plan->chunk = AllocSetContextCreate(plan->context, "pgherd captured rows", ALLOCSET_DEFAULT_SIZES);
	plan->econtext = CreateStandaloneExprContext();
	plan->econtext->ecxt_innertuple = plan->old_slot;
	plan->econtext->ecxt_outertuple = plan->new_slot;
	plan->econtext->ecxt_param_list_info = plan->params;
}

/* The table of plans, which lives as long as the session. */
static HTAB *
make_plans(void)
{
	HASHCTL		info = {0};

	info.keysize = sizeof(PgherdPlanKey);
	info.entrysize = sizeof(PgherdPlan);
	return hash_create("pgherd plans", 64, &info, HASH_ELEM | HASH_BLOBS);
}

/* Forgets what a plan was made of. */
static void
empty(PgherdPlan *plan)
{
	PgherdPlanKey key = plan->key;

	if (plan->context != NULL)
		MemoryContextDelete(plan->context);
	memset(plan, 0, sizeof(PgherdPlan));
	plan->key = key;
}

/* Gives back what plans hold that are not valid any more; their tables may be gone. */
static void
sweep(void)
{
	HASH_SEQ_STATUS status;
	PgherdPlan *plan;

	hash_seq_init(&status, pgherd.plans);
	while ((plan = hash_seq_search(&status)) != NULL)
		if (!plan->valid && !plan->busy)
		{
			empty(plan);
			hash_search(pgherd.plans, &plan->key, HASH_REMOVE, NULL);
		}
}

/*
 * The plan for one kind of statement, which lasts until the next call.  If it
 * is `busy`, only its function is of use: what it evaluates has changed the
 * same table.  The caller has become the owner.
 */
PgherdPlan *
pgherd_plan(Relation rel, int kind)
{
	PgherdPlanKey key;
	PgherdPlan *plan;
	MemoryContext before;
	int			nest;

	if (pgherd.plans == NULL)
		pgherd.plans = make_plans();
	memset(&key, 0, sizeof(key));	/* it is hashed with its padding */
	key.relid = RelationGetRelid(rel);
	key.kind = kind;
	plan = hash_search(pgherd.plans, &key, HASH_FIND, NULL);
	if (plan != NULL && (plan->busy || (plan->valid && function_is_same(plan))))
		return plan;
	if (plan != NULL)
		plan->valid = false;
	sweep();
	plan = hash_search(pgherd.plans, &key, HASH_ENTER, NULL);
	memset((char *) plan + sizeof(PgherdPlanKey), 0, sizeof(PgherdPlan) - sizeof(PgherdPlanKey));
	plan->context = AllocSetContextCreate(TopMemoryContext, "pgherd plan", ALLOCSET_SMALL_SIZES);
	before = MemoryContextSwitchTo(plan->context);
	nest = begin_names();
	PG_TRY();
	{
		plan->valid = plan->busy = true;	/* a change from here on makes it invalid again */
		build(plan, rel);
		plan->busy = false;
	}
	PG_CATCH();
	{
		plan->valid = plan->busy = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
	AtEOXact_GUC(true, nest);
	MemoryContextSwitchTo(before);
	return plan;
}
