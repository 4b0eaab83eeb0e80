/*-------------------------------------------------------------------------
 *
 * victim.c
 *	  The error of a session that was cancelled because it stood in the way.
 *
 * What is ordered before a transaction may need a lock that it holds.  The
 * sidecar then marks the transaction and cancels its statement
 * (pgherd.give_way() in 060_apply.sql).  The client would hear 57014, which
 * nobody takes for a reason to repeat a transaction; here it becomes 40001.
 *
 * The mark is an advisory lock of the sidecar's, so it needs no memory that
 * would have to be preloaded, and it ends with the sidecar.
 *
 *-------------------------------------------------------------------------
 */
#include "pgherd_native.h"

#include "access/xact.h"
#include "utils/guc.h"

static emit_log_hook_type previous_hook = NULL;

/*
 * Somebody holds the mark of this transaction.  All locks are copied to see
 * it: GetLockConflicts() passes over who is in no transaction, and to try to
 * take the lock could fail, which nobody may do while an error is reported.
 */
static bool
is_marked(FullTransactionId xid)
{
	LockData   *all = GetLockStatusData();
	LOCKTAG		tag;
	int			i;

	pgherd_set_token(&tag, PGHERD_VICTIM_TOKEN + XidFromFullTransactionId(xid));
	for (i = 0; i < all->nelements; i++)
	{
		LockInstanceData *one = &all->locks[i];

		if (memcmp(&one->locktag, &tag, sizeof(tag)) == 0 && one->holdMask & LOCKBIT_ON(ExclusiveLock))
			return true;
	}
	return false;
}

/* May it have been ordered, by this module or by certify()?  Then it may commit all the same. */
static bool
is_committing(void)
{
	const char *ordering = GetConfigOption("pgherd.ordering", true, false);

	return pgherd.committing || (pgherd.certified && ordering != NULL && strcmp(ordering, "on") == 0);
}

/*
 * Called with the error on its way to the log and to the client, before the
 * transaction is aborted.  No code of a user's has caught it: OTHERS leaves a
 * cancel alone.
 */
static void
on_report(ErrorData *error)
{
	FullTransactionId xid;

	if (error->elevel == ERROR && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
	{
		xid = GetTopFullTransactionIdIfAny();
		if (!is_committing() && pgherd_is_armed(xid) && is_marked(xid))
		{
			error->sqlerrcode = ERRCODE_T_R_SERIALIZATION_FAILURE;
			error->message = pstrdup("could not serialize access: a change of another member needs a lock "
									 "that this transaction holds");
			error->hint = pstrdup("Repeat the transaction.");
		}
	}
	if (previous_hook)
		previous_hook(error);
}

void
pgherd_watch_errors(void)
{
	previous_hook = emit_log_hook;
	emit_log_hook = on_report;
}
