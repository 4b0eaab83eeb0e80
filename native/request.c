/*-------------------------------------------------------------------------
 *
 * request.c
 *	  The request that orders a transaction: what certify() of 020_hook.sql
 *	  makes of the captured rows, in the same form.
 *
 *	  W secret pid xid flags \n keys \n body
 *
 * What has become of rows that a transaction has touched twice, and
 * fingerprints, are asked of the SQL functions that say it in SQL mode, too.
 * Commands, and what is larger than a piece, are left to certify() as a whole.
 *
 *-------------------------------------------------------------------------
 */
#include "pgherd_native.h"

#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/varlena.h"

#define FLAG_FINGERPRINT 4

/* What was read of the captured rows so far. */
typedef struct Collected
{
	int64		piece_bytes;
	int64		recs_bytes;
	int			statements;		/* rows with content */
	bool		unusual;		/* a command is among them, or they are too large */
	StringInfoData keys;
	StringInfoData body;
	int64	   *pks;			/* of all rows */
	int			pks_count;
	int			pks_space;
} Collected;

static bool
text_is(Datum value, const char *expected)
{
	text	   *t = DatumGetTextPP(value);
	Size		length = strlen(expected);

	return VARSIZE_ANY_EXHDR(t) == length && memcmp(VARDATA_ANY(t), expected, length) == 0;
}

static void
append_text(StringInfo out, Datum value)
{
	text	   *t = DatumGetTextPP(value);

	appendBinaryStringInfo(out, VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
}

static void
note_pk(Collected *c, int64 pk)
{
	if (c->pks_count == c->pks_space)
	{
		c->pks_space = c->pks_space == 0 ? 16 : c->pks_space * 2;
		c->pks = c->pks == NULL ? palloc(c->pks_space * sizeof(int64))
			: repalloc(c->pks, c->pks_space * sizeof(int64));
	}
	c->pks[c->pks_count++] = pk;
}

/* As pgherd.item(): [tab,[pk,...],["record",...]] */
static void
append_item(Collected *c, PgherdRow *row)
{
	StringInfo	out = &c->body;
	Datum	   *values;
	bool	   *nulls;
	int			count;

	appendStringInfoChar(out, '[');
	append_text(out, row->tab);
	appendStringInfoString(out, ",[");
	deconstruct_array(DatumGetArrayTypeP(row->pks), INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
					  TYPALIGN_DOUBLE, &values, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			elog(ERROR, "a captured row has no key");
		note_pk(c, DatumGetInt64(values[i]));
		appendStringInfo(out, i == 0 ? INT64_FORMAT : "," INT64_FORMAT, DatumGetInt64(values[i]));
	}
	appendStringInfoString(out, "],[");
	deconstruct_array(DatumGetArrayTypeP(row->recs), TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			elog(ERROR, "a captured row has no record");
		if (i > 0)
			appendStringInfoChar(out, ',');
		escape_json(out, TextDatumGetCString(values[i]));
	}
	appendStringInfoString(out, "]]");
}

static bool
collect(PgherdRow *row, Size recs_bytes, void *arg)
{
	Collected  *c = arg;

	c->recs_bytes += recs_bytes;
	if (text_is(row->tab, "sentinel"))
	{
		c->unusual |= text_is(row->keys, "settled");
		return !c->unusual;
	}
	c->unusual |= text_is(row->tab, "\"\"") || c->recs_bytes > c->piece_bytes;
	if (c->unusual)
		return false;
	c->statements++;
	if (!text_is(row->keys, ""))
	{
		appendStringInfo(&c->keys, c->keys.len == 0 ? INT64_FORMAT ":" : ";" INT64_FORMAT ":", row->base);
		append_text(&c->keys, row->keys);
	}
	if (c->body.len > 0)
		appendStringInfoChar(&c->body, ',');
	append_item(c, row);
	return true;
}

static int
compare_pks(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return x < y ? -1 : x > y;
}

/* Does more than one record concern a row (C3), or one a whole table? */
static bool
touches_a_row_twice(Collected *c)
{
	if (c->statements < 2)
		return false;
	qsort(c->pks, c->pks_count, sizeof(int64), compare_pks);
	for (int i = 0; i < c->pks_count; i++)
		if (c->pks[i] == 0 || (i > 0 && c->pks[i] == c->pks[i - 1]))
			return true;
	return false;
}

/* A text that a function of the schema pgherd returns; "" for NULL. */
static char *
ask_sql(const char *query, int nargs, Oid *types, Datum *values)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *text;
	char	   *result;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args(query, nargs, types, values, NULL, false, 1) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "a function of pgherd's has not returned a row");
	text = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	result = MemoryContextStrdup(context, text == NULL ? "" : text);
	SPI_finish();
	return result;
}

/*
 * The final state of the rows that a transaction has touched twice, as
 * pgherd.final_state() has it: for each table its own function says what is
 * under each key now.  These are looked up by name each time, so a table that
 * was made anew, or has another name, is never taken for the one before.
 */
typedef struct TableRecords
{
	Datum		tab;			/* its name, as JSON */
	ArrayBuildState *recs;		/* in the order of their capture */
} TableRecords;

typedef struct Gathered
{
	List	   *tables;			/* of TableRecords */
	bool		unusual;		/* a truncation, or a name that takes more than to strip its quotes */
} Gathered;

static bool
gather(PgherdRow *row, Size recs_bytes, void *arg)
{
	Gathered   *g = arg;
	TableRecords *found = NULL;
	ListCell   *cell;
	Datum	   *values;
	bool	   *nulls;
	int			count;

	if (text_is(row->tab, "sentinel"))
		return true;
	foreach(cell, g->tables)
	{
		TableRecords *t = lfirst(cell);

		if (DatumGetBool(DirectFunctionCall2Coll(texteq, C_COLLATION_OID, t->tab, row->tab)))
			found = t;
	}
	if (found == NULL)
	{
		found = palloc0(sizeof(TableRecords));
		found->tab = datumCopy(PointerGetDatum(PG_DETOAST_DATUM(row->tab)), false, -1);
		g->tables = lappend(g->tables, found);
	}
	deconstruct_array(DatumGetArrayTypeP(row->recs), TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			elog(ERROR, "a captured row has no record");
		g->unusual |= text_is(values[i], "T");
		found->recs = accumArrayResult(found->recs, values[i], false, TEXTOID, CurrentMemoryContext);
	}
	return !g->unusual;
}

/* The function of a table's partition root; InvalidOid if it takes SQL to find it. */
static Oid
final_function(Datum tab)
{
	static const Oid types[] = {TEXTOID, TEXTARRAYOID, BOOLOID, BOOLOID};
	char	   *name = TextDatumGetCString(tab);
	int			length = strlen(name);
	Oid			rel;
	List	   *ancestors;

	if (length < 2 || strchr(name, '\\') != NULL)
		return InvalidOid;
	name[length - 1] = '\0';
	rel = RangeVarGetRelid(makeRangeVarFromNameList(stringToQualifiedNameList(name + 1
#if PG_VERSION_NUM >= 160000
																			 ,NULL
#endif
																			 )), NoLock, true);
	if (!OidIsValid(rel))
		return InvalidOid;
	if (get_rel_relispartition(rel))
	{
		ancestors = get_partition_ancestors(rel);
		rel = llast_oid(ancestors);
	}
	return LookupFuncName(list_make2(makeString("pgherd_gen"), makeString(psprintf("final_%u", rel))),
						  lengthof(types), types, true);
}

static int
compare_tables(const ListCell *a, const ListCell *b)
{
	return DatumGetInt32(DirectFunctionCall2Coll(bttextcmp, DEFAULT_COLLATION_OID,
												 ((TableRecords *) lfirst(a))->tab,
												 ((TableRecords *) lfirst(b))->tab));
}

static char *
final_state(FullTransactionId xid)
{
	Oid			type = XID8OID;
	Datum		value = FullTransactionIdGetDatum(xid);
	Gathered	g = {NIL, false};
	StringInfoData body;
	ListCell   *cell;

	initStringInfo(&body);
	pgherd_visit_rows(xid, gather, &g);
	list_sort(g.tables, compare_tables);
	foreach(cell, g.tables)
	{
		TableRecords *t = lfirst(cell);
		Oid			function = g.unusual ? InvalidOid : final_function(t->tab);
		LOCAL_FCINFO(call, 4);
		FmgrInfo	info;
		Datum		items;

		if (!OidIsValid(function))
			return ask_sql("SELECT pgherd.final_state($1, 0)", 1, &type, &value);
		fmgr_info(function, &info);
		InitFunctionCallInfoData(*call, &info, 4, InvalidOid, NULL, NULL);
		call->args[0].value = t->tab;
		call->args[1].value = makeArrayResult(t->recs, CurrentMemoryContext);
		call->args[2].value = call->args[3].value = BoolGetDatum(true);
		for (int i = 0; i < 4; i++)
			call->args[i].isnull = false;
		items = FunctionCallInvoke(call);
		if (call->isnull)
			continue;
		if (body.len > 0)
			appendStringInfoChar(&body, ',');
		append_text(&body, items);
	}
	return body.data;
}

static char *
fingerprint(const char *body)
{
	Oid			type = TEXTOID;
	Datum		value = PointerGetDatum(cstring_to_text(psprintf("[%s]", body)));

	return ask_sql("SELECT pgherd.fingerprint($1)", 1, &type, &value);
}

/* The caller has pushed a snapshot, and has become the owner. */
PgherdRequestKind
pgherd_make_request(FullTransactionId xid, PgherdNode *node, StringInfo request)
{
	uint64		number = U64FromFullTransactionId(xid);
	Collected	c = {.piece_bytes = node->piece_bytes};
	const char *body;
	const char *mark = "";

	initStringInfo(&c.keys);
	initStringInfo(&c.body);
	pgherd_visit_rows(xid, collect, &c);
	if (c.unusual || node->fingerprint_every <= 0)
		return PGHERD_LEFT_TO_SQL;
	if (c.statements == 0)
		return PGHERD_NOTHING;
	body = touches_a_row_twice(&c) ? final_state(xid) : c.body.data;
	if (DatumGetInt32(DirectFunctionCall1(hashint8, Int64GetDatum((int64) number))) % node->fingerprint_every == 0)
		mark = fingerprint(body);
	appendStringInfo(request, "W %s %d " UINT64_FORMAT " %d\n", node->secret, MyProcPid, number,
					 *mark != '\0' ? FLAG_FINGERPRINT : 0);
	appendBinaryStringInfo(request, c.keys.data, c.keys.len);
	appendStringInfoString(request, "\n[");
	appendStringInfoString(request, body);
	if (*mark != '\0')
		appendStringInfo(request, *body != '\0' ? ",%s" : "%s", mark);
	appendStringInfoChar(request, ']');
	return PGHERD_WHOLE;
}
