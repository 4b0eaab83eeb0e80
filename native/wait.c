/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Waiting for a lock after the verdict, when no interruption may read as
 *	  an abort (C4).
 *
 * Commits become visible in the order of their GIDs because each waits for
 * the token of the one before it, an advisory lock, as in SQL mode: so
 * PostgreSQL's deadlock detector and the sidecar's watch see the wait, and
 * nodes in either mode are alike.
 *
 *-------------------------------------------------------------------------
 */
#include "pgherd_native.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

/* An advisory lock, as pg_advisory_xact_lock(int8) takes it. */
void
pgherd_set_token(LOCKTAG *tag, int64 key)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (key >> 32), (uint32) key, 1);
}

/* Takes the token of the transaction itself, if nobody else has it. */
bool
pgherd_try_token(int64 key)
{
	LOCKTAG		tag;

	pgherd_set_token(&tag, key);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

static bool
is_interruption(int sqlstate)
{
	return sqlstate == ERRCODE_QUERY_CANCELED || sqlstate == ERRCODE_T_R_DEADLOCK_DETECTED ||
		sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
}

/*
 * Takes a lock until the end of the transaction; false if the wait for it was
 * interrupted.  The caller holds interrupts, and does afterwards.
 */
bool
pgherd_wait_for_lock(const LOCKTAG *tag, LOCKMODE mode)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool taken = true;

	Assert(InterruptHoldoffCount == 1);
	if (LockAcquire(tag, mode, false, true) != LOCKACQUIRE_NOT_AVAIL)
		return true;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		RESUME_INTERRUPTS();
		CHECK_FOR_INTERRUPTS();
		(void) LockAcquire(tag, mode, false, false);
		HOLD_INTERRUPTS();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		HOLD_INTERRUPTS();		/* PostgreSQL has set their count to zero */
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (!is_interruption(error->sqlerrcode))
			ReThrowError(error);
		taken = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return taken;
}
