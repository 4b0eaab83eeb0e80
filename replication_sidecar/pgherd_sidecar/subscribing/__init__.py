"""Plain PostgreSQL servers, and herds, that follow sets of a herd's tables: `pgherd subscribe`.

Each member with a database runs one process of it, a feeder, while there are subscriptions::

    state       a room below: what the herd and subscribers hold
    selecting   a room below: row filters and column lists
    copying     rows at a marker, put beside what is shown
    sources     where rows come from: a member, or a subscriber that forwards
    sequences   the numbers that rows tell of
    background  what goes on at the subscriber's server meanwhile
    applying    the rows of changes, written and shown with their GID
    feeding     one subscription: copies, publishes, follows
    care        whose turn it is, and what is made of errors
    feeder      the process of a member: one feeding for each subscription
    forwarder   the process beside a subscriber that feeds others
    overview    how all of them are, for people
    failover    a room above: one of them takes over when the herd is lost
    ordering    a room above that: what is ordered of a herd

Out go transactions at the subscriber. The room promises that what a subscriber shows is the set at
the GID that it names, which changes in the same transaction as the rows. Which feeder is at work is
decided by an advisory lock at the subscriber, and by turns where that is a herd (``state.turn``);
that GID alone keeps two from doing work twice.
"""
