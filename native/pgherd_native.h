/*-------------------------------------------------------------------------
 *
 * pgherd_native.h
 *	  What the files of the native module share.
 *
 * The module does in C what the triggers, the deferred trigger and certify()
 * of pgherd do in SQL (pg/sql/020_hook.sql, 032_generate.sql), and sends the
 * same request.  Nothing of what it computes is of its own making: the keys
 * and the records of a row are expressions that the SQL code has written
 * (plan.c), and captured rows lie in the same tables (store.c).  So whatever
 * is not done here is left to the SQL functions, within one transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGHERD_NATIVE_H
#define PGHERD_NATIVE_H

#include "postgres.h"

#include "access/htup.h"
#include "access/transam.h"
#include "access/tupdesc.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "nodes/execnodes.h"
#include "nodes/params.h"
#include "nodes/pg_list.h"
#include "storage/itemptr.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/hsearch.h"
#include "utils/rel.h"
#include "utils/xid8.h"
#if PG_VERSION_NUM >= 180000
#include "storage/waiteventset.h"
#endif

#if PG_VERSION_NUM >= 180000
#define PGHERD_NORETURN pg_noreturn
#else
#define PGHERD_NORETURN pg_attribute_noreturn()
#endif

/*
 * The interface between the module and the SQL of the sidecar.  It is raised
 * when either changes in a way that the other must know of; a node whose
 * module has another one stays with SQL (036_native.sql).
 */
#define PGHERD_NATIVE_INTERFACE 5

/* As pgherd.capture_side(), token_of_xid(), ... in 010_schema.sql. */
#define PGHERD_SIDE(xid)		((int) ((U64FromFullTransactionId(xid) >> 17) & 1))
#define PGHERD_XID_TOKEN		INT64CONST(5785081970366611456)
#define PGHERD_BATCH_TOKEN		INT64CONST(5786207870273454080)
#define PGHERD_VICTIM_TOKEN		INT64CONST(5783956070459768832)

/* Columns of pgherd.capture_0 and capture_1, and of pgherd.applied. */
enum
{
	CAPTURE_XID = 1, CAPTURE_SEQ, CAPTURE_BASE, CAPTURE_TAB, CAPTURE_KEYS, CAPTURE_PKS, CAPTURE_RECS,
	CAPTURE_COLUMNS = CAPTURE_RECS
};

enum
{
	APPLIED_GID = 1, APPLIED_PREV, APPLIED_XID,
	APPLIED_COLUMNS = APPLIED_XID
};

/*
 * Which tables of the schema pgherd are which.  Looked up once, and again
 * after any of them was changed.
 */
typedef struct PgherdTables
{
	bool		valid;
	Oid			owner;			/* whose rights the module uses */
	Oid			capture[2];
	Oid			capture_order[2];	/* their indexes (xid, seq DESC) */
	Oid			applied;
	Oid			applied_gid;	/* its index (gid) */
	Oid			node;
	AttrNumber	node_member;
	AttrNumber	node_incarnation;
	AttrNumber	node_epoch;
	AttrNumber	node_secret;
	AttrNumber	node_socket;
	AttrNumber	node_writable;
	AttrNumber	node_piece_bytes;
	AttrNumber	node_fingerprint_every;
	AttrNumber	node_database;
	AttrNumber	node_server_start;
} PgherdTables;

/* The session's connection to the hook socket of its sidecar (link.c). */
typedef struct PgherdLink
{
	pgsocket	sock;			/* PGINVALID_SOCKET if there is none */
	int64		epoch;			/* the start of the sidecar that it was opened to */
	bool		busy;			/* it is not open yet, or an answer was not read to its end */
	WaitEventSet *events;		/* of the socket, the latch and the postmaster */
	int			socket_event;	/* the socket's place in it */
	StringInfoData in;			/* what was received and not read yet */
} PgherdLink;

/*
 * All that the module keeps between calls, one for each backend.  What
 * concerns a transaction is void when `armed` is not the current one's.
 */
typedef struct PgherdBackend
{
	FullTransactionId armed;	/* the transaction that has captured rows, if they still count */
	bool		certified;		/* at COMMIT; or that was tried */
	bool		committing;		/* it may have been ordered */
	bool		holding;		/* cancels are held until it has committed */
	bool		asynchronous;	/* synchronous_commit is off for its commit record only ... */
	int			synchronous;	/* ... and is this otherwise */
	bool		keeping;		/* until its end no setting ends the session or a wait ... */
	bool		exit_on_error;	/* ... and these are back then */
	int			lock_timeout;
	int64		seen_gid;		/* the newest GID at the last look, where the next one begins */
	PgherdTables tables;
	PgherdLink	link;
	HTAB	   *plans;			/* of PgherdPlan */
} PgherdBackend;

extern PgherdBackend pgherd;

/* The row of pgherd.node, copied into the current memory context. */
typedef struct PgherdNode
{
	int			member;
	int64		incarnation;
	int64		epoch;
	char	   *secret;
	char	   *socket;
	bool		writable;
	int64		piece_bytes;
	int64		fingerprint_every;
	bool		elsewhere;		/* the row was written for another database, or before the server started */
} PgherdNode;

/* One captured statement, as it is in the capture table or shall be. */
typedef struct PgherdRow
{
	int64		seq;
	int64		base;
	Datum		tab;
	Datum		keys;
	Datum		pks;
	Datum		recs;
} PgherdRow;

/* How rows of one table are captured for one kind of statement. */
typedef struct PgherdPlanKey
{
	Oid			relid;
	int			kind;			/* TRIGGER_EVENT_INSERT, ..._UPDATE or ..._DELETE */
} PgherdPlanKey;

typedef struct PgherdPlan
{
	PgherdPlanKey key;			/* of the hash table: must be first */
	bool		valid;			/* false: something that it rests on has changed */
	bool		busy;			/* it is being read or evaluated */
	bool		domains;		/* it rests on constraints of domains */
	List	   *items;			/* and on these functions and types, of PlanInvalItem */
	MemoryContext context;		/* of all that follows */
	Oid			function;		/* the SQL function, for all that is not done here */
	TransactionId function_xmin;	/* which version of it */
	ItemPointerData function_tid;
	bool		usable;			/* false: all is left to that function */
	bool		many;			/* false: so are statements that change several rows */
	ArrayType  *settings;		/* under which it runs, NULL for the session's own */
	Datum		tab;
	char	   *table_keys;		/* what each captured statement carries */
	ExprState  *image;			/* NULL, or what the others read as $1 */
	ParamListInfo params;		/* that value */
	ExprState  *condition;		/* NULL: none; false: the rows are left to the SQL function */
	ExprState  *keys;
	ExprState  *pk;
	ExprState  *rec;
	ExprContext *econtext;
	MemoryContext chunk;		/* of rows that are captured together */
	TupleTableSlot *old_slot;
	TupleTableSlot *new_slot;
} PgherdPlan;

/* What came of a request. */
typedef enum PgherdReply
{
	PGHERD_DONE,				/* `tag` is the answer */
	PGHERD_ERROR,				/* `sqlstate` and so on are */
	PGHERD_INTERRUPTED,			/* a cancel came before the answer, which may still come */
	PGHERD_LOST					/* the connection is gone; `message` says why */
} PgherdReply;

typedef struct PgherdAnswer
{
	PgherdReply reply;
	char		tag[128];
	int			sqlstate;
	char	   *message;
	char	   *detail;
	char	   *hint;
} PgherdAnswer;

/* What a transaction is to send. */
typedef enum PgherdRequestKind
{
	PGHERD_NOTHING,				/* it has captured nothing, or has rolled that back */
	PGHERD_WHOLE,				/* one request, which was made */
	PGHERD_LEFT_TO_SQL			/* commands, or more than one piece */
} PgherdRequestKind;

/* pgherd_native.c */
extern bool pgherd_is_armed(FullTransactionId xid);
extern void pgherd_arm(FullTransactionId xid);

/* store.c */
extern PgherdTables *pgherd_tables(void);
extern void pgherd_become_owner(Oid *user, int *context);
extern PgherdNode *pgherd_read_node(void);
extern int64 pgherd_last_gid(void);
extern bool pgherd_is_applied(int64 gid);
extern void pgherd_add_applied(int64 gid, int64 prev, FullTransactionId xid);
extern int64 pgherd_last_seq(FullTransactionId xid);
extern void pgherd_add_row(FullTransactionId xid, PgherdRow *row);
typedef bool (*pgherd_row_visitor) (PgherdRow *row, Size recs_bytes, void *arg);
extern void pgherd_visit_rows(FullTransactionId xid, pgherd_row_visitor visit, void *arg);

/* plan.c */
extern PgherdPlan *pgherd_plan(Relation rel, int kind);
extern void pgherd_forget_plans(Oid relid);
extern void pgherd_forget_plans_with(int cache, uint32 hash);

/* request.c */
extern PgherdRequestKind pgherd_make_request(FullTransactionId xid, PgherdNode *node, StringInfo request);

/* link.c */
extern bool pgherd_link_open(PgherdNode *node);
extern void pgherd_link_close(void);
extern void pgherd_link_ask(PgherdAnswer *answer, const char *request, int length, bool interruptible);

/* wait.c */
extern bool pgherd_wait_for_lock(const LOCKTAG *tag, LOCKMODE mode);
extern bool pgherd_try_token(int64 key);
extern void pgherd_set_token(LOCKTAG *tag, int64 key);

/* victim.c */
extern void pgherd_watch_errors(void);

/* hook.c */
extern void pgherd_before_commit(FullTransactionId xid);

#endif							/* PGHERD_NATIVE_H */
