"""The scrub: which part of the tables is compared next, and what the members' answers mean.

A *request* in the log asks all members for checksums of one part of the tables as they are at its
position; each *answer* comes through the log, too, so every member draws the same conclusions. The
proposer orders requests, one at a time. A part in which members differ is asked for again, at a
later position: first row by row where that can be, then the rows that differ by their keys. What
still differs then is a `Difference`, and it is asked for from time to time until it is gone.

A *pass* is once through all tables. Nobody has to answer: who is down, busy, or has no such table
any more is left out. A part that fewer than two members can read is tried again, then skipped.
While fewer than two answer at all it waits.

In come requests and answers at their positions; out come conclusions and what to ask for next. The
room does no IO and knows no clock. It promises the same conclusions on all members. A ledger may be
kept and lost: it has where to go on, and what has been found.
"""
