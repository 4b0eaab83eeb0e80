/*-------------------------------------------------------------------------
 *
 * store.c
 *	  pgherd's own tables as the module reads and writes them.
 *
 * Captured rows go into the tables that the SQL functions use, as tuples,
 * without the executor.  So savepoints, MVCC and the order among rows that C
 * and SQL have captured are what they are in SQL mode, the memory of a
 * transaction is bounded, and a row is text from the moment it is captured:
 * a command that changes its table later does not touch it.
 *
 * All readers use the active snapshot, which their callers push.
 *
 *-------------------------------------------------------------------------
 */
#include "pgherd_native.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

static Oid
find_table(Oid schema, const char *name)
{
	Oid			relid = get_relname_relid(name, schema);

	if (!OidIsValid(relid))
		elog(ERROR, "pgherd.%s is missing", name);
	return relid;
}

static AttrNumber
find_column(Oid relid, const char *name, Oid type)
{
	AttrNumber	attnum = get_attnum(relid, name);

	if (attnum == InvalidAttrNumber || get_atttype(relid, attnum) != type)
		elog(ERROR, "column %s of a table of pgherd is not as the native module knows it", name);
	return attnum;
}

/* The columns that are read by their numbers are where they should be. */
static void
check_columns(Oid relid, const char *const *names, const Oid *types, int count)
{
	for (int i = 0; i < count; i++)
		if (find_column(relid, names[i], types[i]) != i + 1)
			elog(ERROR, "column %s of a table of pgherd is not as the native module knows it", names[i]);
}

PgherdTables *
pgherd_tables(void)
{
	static const char *const capture_names[] = {"xid", "seq", "base", "tab", "keys", "pks", "recs"};
	static const Oid capture_types[] = {XID8OID, INT8OID, INT8OID, TEXTOID, TEXTOID, INT8ARRAYOID, TEXTARRAYOID};
	static const char *const applied_names[] = {"gid", "prev", "xid"};
	static const Oid applied_types[] = {INT8OID, INT8OID, XID8OID};
	PgherdTables *t = &pgherd.tables;
	Oid			schema;
	HeapTuple	tuple;

	if (t->valid)
		return t;
	t->valid = true;			/* a change from here on makes it invalid again */
	PG_TRY();
	{
		schema = get_namespace_oid("pgherd", false);
		tuple = SearchSysCache1(NAMESPACEOID, ObjectIdGetDatum(schema));
		if (!HeapTupleIsValid(tuple))
			elog(ERROR, "the schema pgherd is missing");
		t->owner = ((Form_pg_namespace) GETSTRUCT(tuple))->nspowner;
		ReleaseSysCache(tuple);
		t->capture[0] = find_table(schema, "capture_0");
		t->capture[1] = find_table(schema, "capture_1");
		t->capture_order[0] = find_table(schema, "capture_0_order");
		t->capture_order[1] = find_table(schema, "capture_1_order");
		t->applied = find_table(schema, "applied");
		t->applied_gid = find_table(schema, "applied_pkey");
		t->node = find_table(schema, "node");
		check_columns(t->capture[0], capture_names, capture_types, CAPTURE_COLUMNS);
		check_columns(t->capture[1], capture_names, capture_types, CAPTURE_COLUMNS);
		check_columns(t->applied, applied_names, applied_types, APPLIED_COLUMNS);
		t->node_member = find_column(t->node, "member", INT4OID);
		t->node_incarnation = find_column(t->node, "incarnation", INT8OID);
		t->node_epoch = find_column(t->node, "epoch", INT8OID);
		t->node_secret = find_column(t->node, "secret", TEXTOID);
		t->node_socket = find_column(t->node, "hook_socket", TEXTOID);
		t->node_writable = find_column(t->node, "writable", BOOLOID);
		t->node_piece_bytes = find_column(t->node, "piece_bytes", INT8OID);
		t->node_fingerprint_every = find_column(t->node, "fingerprint_every", INT8OID);
		t->node_database = find_column(t->node, "database", NAMEOID);
		t->node_server_start = find_column(t->node, "server_start", TIMESTAMPTZOID);
	}
	PG_CATCH();
	{
		t->valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
	return t;
}

/*
 * From here on with the rights that the SQL functions have, which are
 * SECURITY DEFINER.  The caller goes back by SetUserIdAndSecContext(); after
 * an error PostgreSQL does.
 */
void
pgherd_become_owner(Oid *user, int *context)
{
	GetUserIdAndSecContext(user, context);
	SetUserIdAndSecContext(pgherd_tables()->owner, *context | SECURITY_LOCAL_USERID_CHANGE);
}

static Datum
column(HeapTuple tuple, Relation rel, AttrNumber attnum)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, attnum, RelationGetDescr(rel), &isnull);

	if (isnull)
		elog(ERROR, "a column of %s is null", RelationGetRelationName(rel));
	return value;
}

/* NULL if the node has never been started. */
PgherdNode *
pgherd_read_node(void)
{
	PgherdTables *t = pgherd_tables();
	Relation	rel = table_open(t->node, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, GetActiveSnapshot(), 0, NULL);
	HeapTuple	tuple = systable_getnext(scan);
	int			natts = RelationGetNumberOfAttributes(rel);
	PgherdNode *node = NULL;

	if (HeapTupleIsValid(tuple))
	{
		/* Each of its columns is NOT NULL. */
		Datum	   *values = palloc(natts * sizeof(Datum));
		bool	   *nulls = palloc(natts * sizeof(bool));

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		node = palloc(sizeof(PgherdNode));
		node->member = DatumGetInt32(values[t->node_member - 1]);
		node->incarnation = DatumGetInt64(values[t->node_incarnation - 1]);
		node->epoch = DatumGetInt64(values[t->node_epoch - 1]);
		node->secret = TextDatumGetCString(values[t->node_secret - 1]);
		node->socket = TextDatumGetCString(values[t->node_socket - 1]);
		node->writable = DatumGetBool(values[t->node_writable - 1]);
		node->piece_bytes = DatumGetInt64(values[t->node_piece_bytes - 1]);
		node->fingerprint_every = DatumGetInt64(values[t->node_fingerprint_every - 1]);
		node->elsewhere = DatumGetTimestampTz(values[t->node_server_start - 1]) != PgStartTime ||
			strcmp(NameStr(*DatumGetName(values[t->node_database - 1])), get_database_name(MyDatabaseId)) != 0;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return node;
}

/* The newest GID from `least` on that the active snapshot sees, 0 if none. */
static int64
newest_gid(Relation rel, Relation index, int64 least)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	int64		gid;

	ScanKeyInit(&key, APPLIED_GID, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(least));
	scan = systable_beginscan_ordered(rel, index, GetActiveSnapshot(), 1, &key);
	tuple = systable_getnext_ordered(scan, BackwardScanDirection);
	gid = HeapTupleIsValid(tuple) ? DatumGetInt64(column(tuple, rel, APPLIED_GID)) : 0;
	systable_endscan_ordered(scan);
	return gid;
}

/*
 * The newest GID that the active snapshot sees, as pgherd.last_gid().  From
 * one snapshot of a session to the next it hardly ever falls, and a scan
 * that ends at the last one does not read all of its page.
 */
int64
pgherd_last_gid(void)
{
	PgherdTables *t = pgherd_tables();
	Relation	rel = table_open(t->applied, AccessShareLock);
	Relation	index = index_open(t->applied_gid, AccessShareLock);
	int64		gid = newest_gid(rel, index, pgherd.seen_gid);

	if (gid == 0 && pgherd.seen_gid > 0)	/* an imported snapshot may be older */
		gid = newest_gid(rel, index, 0);
	pgherd.seen_gid = gid;
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return gid;
}

/* Does the active snapshot see this GID? */
bool
pgherd_is_applied(int64 gid)
{
	PgherdTables *t = pgherd_tables();
	Relation	rel = table_open(t->applied, AccessShareLock);
	Relation	index = index_open(t->applied_gid, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	bool		found;

	ScanKeyInit(&key, APPLIED_GID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(gid));
	scan = systable_beginscan_ordered(rel, index, GetActiveSnapshot(), 1, &key);
	found = HeapTupleIsValid(systable_getnext_ordered(scan, ForwardScanDirection));
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return found;
}

/* The link of the commit chain; the caller has a lock on the table. */
void
pgherd_add_applied(int64 gid, int64 prev, FullTransactionId xid)
{
	Relation	rel = table_open(pgherd_tables()->applied, RowExclusiveLock);
	Datum		values[APPLIED_COLUMNS];
	bool		nulls[APPLIED_COLUMNS] = {false};
	HeapTuple	tuple;

	values[APPLIED_GID - 1] = Int64GetDatum(gid);
	values[APPLIED_PREV - 1] = Int64GetDatum(prev);
	values[APPLIED_XID - 1] = FullTransactionIdGetDatum(xid);
	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	CatalogTupleInsert(rel, tuple);
	heap_freetuple(tuple);
	table_close(rel, NoLock);
}

static SysScanDesc
begin_rows(FullTransactionId xid, Relation *rel, Relation *index)
{
	PgherdTables *t = pgherd_tables();
	int			side = PGHERD_SIDE(xid);
	ScanKeyData key;

	*rel = table_open(t->capture[side], AccessShareLock);
	*index = index_open(t->capture_order[side], AccessShareLock);
	ScanKeyInit(&key, CAPTURE_XID, BTEqualStrategyNumber, F_XID8EQ, FullTransactionIdGetDatum(xid));
	return systable_beginscan_ordered(*rel, *index, GetActiveSnapshot(), 1, &key);
}

static void
end_rows(SysScanDesc scan, Relation rel, Relation index)
{
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
}

/* The number of the row that the transaction has captured last, 0 if none. */
int64
pgherd_last_seq(FullTransactionId xid)
{
	Relation	rel;
	Relation	index;
	SysScanDesc scan = begin_rows(xid, &rel, &index);
	HeapTuple	tuple = systable_getnext_ordered(scan, ForwardScanDirection);
	int64		seq = HeapTupleIsValid(tuple) ? DatumGetInt64(column(tuple, rel, CAPTURE_SEQ)) : 0;

	end_rows(scan, rel, index);
	return Max(seq, 0);
}

void
pgherd_add_row(FullTransactionId xid, PgherdRow *row)
{
	Relation	rel = table_open(pgherd_tables()->capture[PGHERD_SIDE(xid)], RowExclusiveLock);
	Datum		values[CAPTURE_COLUMNS];
	bool		nulls[CAPTURE_COLUMNS] = {false};
	HeapTuple	tuple;

	values[CAPTURE_XID - 1] = FullTransactionIdGetDatum(xid);
	values[CAPTURE_SEQ - 1] = Int64GetDatum(row->seq);
	values[CAPTURE_BASE - 1] = Int64GetDatum(row->base);
	values[CAPTURE_TAB - 1] = row->tab;
	values[CAPTURE_KEYS - 1] = row->keys;
	values[CAPTURE_PKS - 1] = row->pks;
	values[CAPTURE_RECS - 1] = row->recs;
	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	CatalogTupleInsert(rel, tuple);
	heap_freetuple(tuple);
	table_close(rel, NoLock);
	pgherd_arm(xid);			/* the trigger of the table does not fire for us */
}

/*
 * Shows all that the transaction has captured, the oldest row first (the index
 * is a descending one), until `visit` says false.  The row is valid during the call only, and its arrays
 * may be toasted: `recs_bytes` is what pg_column_size() says of the records.
 */
void
pgherd_visit_rows(FullTransactionId xid, pgherd_row_visitor visit, void *arg)
{
	Relation	rel;
	Relation	index;
	SysScanDesc scan = begin_rows(xid, &rel, &index);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext_ordered(scan, BackwardScanDirection)))
	{
		PgherdRow	row;

		row.seq = DatumGetInt64(column(tuple, rel, CAPTURE_SEQ));
		row.base = DatumGetInt64(column(tuple, rel, CAPTURE_BASE));
		row.tab = column(tuple, rel, CAPTURE_TAB);
		row.keys = column(tuple, rel, CAPTURE_KEYS);
		row.pks = column(tuple, rel, CAPTURE_PKS);
		row.recs = column(tuple, rel, CAPTURE_RECS);
		if (!visit(&row, toast_datum_size(row.recs), arg))
			break;
	}
	end_rows(scan, rel, index);
}
