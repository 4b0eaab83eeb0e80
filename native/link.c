/*-------------------------------------------------------------------------
 *
 * link.c
 *	  The session's connection to its sidecar: a Unix socket on which the
 *	  sidecar speaks the server's side of PostgreSQL's simple query protocol,
 *	  as it does for dblink in SQL mode.
 *
 * Interrupts are held while a request is under way.  What ends the session
 * does so all the same; a cancel is reported where the caller asks for it, and
 * forgotten otherwise.
 *
 * A cancel or an error may leave a connection in the middle of an answer.  It
 * is busy then, and is closed before anything else is done with it: what still
 * comes on it is no answer to the next request.
 *
 *-------------------------------------------------------------------------
 */
#include "pgherd_native.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bswap.h"
#include "storage/fd.h"
#include "storage/procsignal.h"
#include "utils/memutils.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#define CONNECT_TIMEOUT_MS 5000
#define RETRY_MS 20
#define MESSAGE_MAX (1024 * 1024)	/* an answer is a few hundred bytes long */
#define PROTOCOL_VERSION ((uint32) 3 << 16)

void
pgherd_link_close(void)
{
	PgherdLink *link = &pgherd.link;

	if (link->sock == PGINVALID_SOCKET)
		return;
	if (link->events != NULL)
		FreeWaitEventSet(link->events);
	closesocket(link->sock);
	ReleaseExternalFD();
	if (link->in.data != NULL)
		pfree(link->in.data);
	memset(link, 0, sizeof(PgherdLink));
	link->sock = PGINVALID_SOCKET;
}

/*
 * Waits until the socket is ready or something has happened.  Returns false
 * if a cancel came and `interruptible` says that this is of interest, or the
 * time is over.
 */
static bool
wait_for_socket(uint32 what, long timeout_ms, bool interruptible)
{
	PgherdLink *link = &pgherd.link;
	WaitEvent	event;

	ModifyWaitEvent(link->events, link->socket_event, what, NULL);
	if (WaitEventSetWait(link->events, timeout_ms, &event, 1, PG_WAIT_EXTENSION) == 0)
		return false;
	if (event.events & WL_LATCH_SET)
		ResetLatch(MyLatch);
	if (ProcDiePending)
	{
		Assert(InterruptHoldoffCount == 1);
		RESUME_INTERRUPTS();
		CHECK_FOR_INTERRUPTS();
		HOLD_INTERRUPTS();
	}
	if (ProcSignalBarrierPending)
		ProcessProcSignalBarrier();
	if (QueryCancelPending)
	{
		QueryCancelPending = false;
		(void) get_timeout_indicator(STATEMENT_TIMEOUT, true);
		(void) get_timeout_indicator(LOCK_TIMEOUT, true);
		return !interruptible;
	}
	return true;
}

static bool
send_all(const char *data, Size length)
{
	while (length > 0)
	{
		ssize_t		sent = send(pgherd.link.sock, data, length, MSG_NOSIGNAL);

		if (sent > 0)
		{
			data += sent;
			length -= sent;
		}
		else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			(void) wait_for_socket(WL_SOCKET_WRITEABLE, -1, false);
		else if (sent == 0 || errno != EINTR)
			return false;
	}
	return true;
}

/*
 * The next message, whose payload is in `payload` and ends with a NUL; 0 if
 * none is complete, -1 if what comes makes no sense.
 */
static int
next_message(StringInfo payload)
{
	StringInfo	in = &pgherd.link.in;
	uint32		length;
	int			type;

	if (in->len - in->cursor < 5)
		return 0;
	type = (unsigned char) in->data[in->cursor];
	memcpy(&length, in->data + in->cursor + 1, sizeof(length));
	length = pg_ntoh32(length);
	if (length < 4 || length > MESSAGE_MAX)
		return -1;
	if (in->len - in->cursor < length + 1)
		return 0;
	resetStringInfo(payload);
	appendBinaryStringInfo(payload, in->data + in->cursor + 5, length - 4);
	in->cursor += length + 1;
	return type;
}

/* Receives more; false if the connection has ended. */
static bool
receive(void)
{
	StringInfo	in = &pgherd.link.in;
	ssize_t		got;

	if (in->cursor > 0)
	{
		memmove(in->data, in->data + in->cursor, in->len - in->cursor);
		in->len -= in->cursor;
		in->cursor = 0;
	}
	enlargeStringInfo(in, 8192);
	got = recv(pgherd.link.sock, in->data + in->len, 8192, 0);
	if (got > 0)
		in->len += got;
	return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK));
}

/* The fields of an error, each a letter and a string. */
static void
read_error(PgherdAnswer *answer, StringInfo payload)
{
	int			place = 0;

	answer->reply = PGHERD_ERROR;
	answer->sqlstate = ERRCODE_CONNECTION_FAILURE;
	answer->message = "the sidecar has refused";
	while (place < payload->len && payload->data[place] != '\0')
	{
		char		field = payload->data[place];
		char	   *value = payload->data + place + 1;	/* it ends within the buffer, which has a NUL behind it */

		if (field == 'C' && strlen(value) == 5)
			answer->sqlstate = MAKE_SQLSTATE(value[0], value[1], value[2], value[3], value[4]);
		else if (field == 'M')
			answer->message = pstrdup(value);
		else if (field == 'D')
			answer->detail = pstrdup(value);
		else if (field == 'H')
			answer->hint = pstrdup(value);
		place += strlen(value) + 2;
	}
}

static void
lose(PgherdAnswer *answer, const char *why)
{
	pgherd_link_close();
	answer->reply = PGHERD_LOST;
	answer->message = (char *) why;
}

/* Reads messages up to ReadyForQuery. */
static void
await_answer(PgherdAnswer *answer, TimestampTz deadline, bool interruptible)
{
	StringInfoData payload;
	bool		answered = false;

	initStringInfo(&payload);
	for (;;)
	{
		int			type = next_message(&payload);
		long		timeout_ms = deadline == 0 ? -1
			: Max(0, TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline));

		if (type == 'C')
		{
			answer->reply = PGHERD_DONE;
			strlcpy(answer->tag, payload.data, sizeof(answer->tag));
			answered = true;
		}
		else if (type == 'E')
		{
			read_error(answer, &payload);
			answered = true;
		}
		else if (type == 'Z')
		{
			pgherd.link.busy = false;
			if (!answered)		/* the greeting ends so */
				answer->reply = PGHERD_DONE;
			return;
		}
		else if (type < 0)
		{
			lose(answer, "its sidecar has sent what is no answer");
			return;
		}
		else if (type == 0)
		{
			if (!wait_for_socket(WL_SOCKET_READABLE, timeout_ms, interruptible))
			{
				answer->reply = PGHERD_INTERRUPTED;
				return;
			}
			if (!receive())
			{
				lose(answer, "the connection to its sidecar has ended");
				return;
			}
		}
	}
}

/*
 * Sends one request and waits for its answer, which is allocated in the
 * current memory context.  After PGHERD_INTERRUPTED the caller opens the
 * connection once more.
 */
void
pgherd_link_ask(PgherdAnswer *answer, const char *request, int length, bool interruptible)
{
	char		head[5] = {'Q'};
	uint32		size = pg_hton32(length + 5);	/* itself, the text and a NUL */

	Assert(InterruptHoldoffCount > 0);
	memset(answer, 0, sizeof(PgherdAnswer));
	memcpy(head + 1, &size, sizeof(size));
	if (pgherd.link.sock == PGINVALID_SOCKET)
	{
		lose(answer, "the connection to its sidecar has ended");
		return;
	}
	pgherd.link.busy = true;
	if (!send_all(head, sizeof(head)) || !send_all(request, length + 1))
		lose(answer, "the connection to its sidecar has ended");
	else
		await_answer(answer, 0, interruptible);
}

static void
watch_socket(void)
{
	PgherdLink *link = &pgherd.link;

#if PG_VERSION_NUM >= 170000
	link->events = CreateWaitEventSet(NULL, 3);
#else
	link->events = CreateWaitEventSet(TopMemoryContext, 3);
#endif
	link->socket_event = AddWaitEventToSet(link->events, WL_SOCKET_READABLE, link->sock, NULL, NULL);
	AddWaitEventToSet(link->events, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(link->events, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
}

/* A socket that is connected, or PGINVALID_SOCKET. */
static pgsocket
connect_socket(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), CONNECT_TIMEOUT_MS);
	pgsocket	sock;

	if (strlen(path) >= sizeof(address.sun_path))
		return PGINVALID_SOCKET;
	strcpy(address.sun_path, path);
	sock = socket(AF_UNIX, SOCK_STREAM, 0);
	if (sock == PGINVALID_SOCKET)
		return PGINVALID_SOCKET;
	if (fcntl(sock, F_SETFD, FD_CLOEXEC) == 0 && pg_set_noblock(sock))
		while (connect(sock, (struct sockaddr *) &address, sizeof(address)) != 0)
		{
			/* Its queue is full, for instance. */
			if ((errno != EAGAIN && errno != EINTR) || GetCurrentTimestamp() >= deadline || ProcDiePending)
				goto failed;
			pg_usleep(RETRY_MS * 1000L);
		}
	else
		goto failed;
	return sock;

failed:
	closesocket(sock);
	return PGINVALID_SOCKET;
}

/* The start-up message, to which the sidecar answers with a greeting. */
static bool
greet(void)
{
	StringInfoData hello;
	PgherdAnswer answer = {0};
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), CONNECT_TIMEOUT_MS);
	uint32		size;

	initStringInfo(&hello);
	pq_sendint32(&hello, PROTOCOL_VERSION);
	pq_sendstring(&hello, "user");
	pq_sendstring(&hello, "pgherd");
	pq_sendbyte(&hello, '\0');
	size = pg_hton32(hello.len + 4);
	if (!send_all((char *) &size, sizeof(size)) || !send_all(hello.data, hello.len))
		return false;
	await_answer(&answer, deadline, false);
	return answer.reply == PGHERD_DONE;
}

/*
 * Opens the connection, unless there is one to the sidecar as it runs now that
 * can be used.  False if the sidecar does not answer.
 */
bool
pgherd_link_open(PgherdNode *node)
{
	PgherdLink *link = &pgherd.link;
	MemoryContext before;
	pgsocket	sock;

	Assert(InterruptHoldoffCount > 0);
	if (link->sock != PGINVALID_SOCKET && link->epoch == node->epoch && !link->busy)
		return true;
	pgherd_link_close();
	if (!AcquireExternalFD())
		return false;
	sock = connect_socket(node->socket);
	if (sock == PGINVALID_SOCKET)
	{
		ReleaseExternalFD();
		return false;
	}
	link->sock = sock;
	link->epoch = node->epoch;
	link->busy = true;			/* what follows may fail */
	before = MemoryContextSwitchTo(TopMemoryContext);
	initStringInfo(&link->in);
	watch_socket();
	MemoryContextSwitchTo(before);
	if (greet())
		return true;
	pgherd_link_close();
	return false;
}
