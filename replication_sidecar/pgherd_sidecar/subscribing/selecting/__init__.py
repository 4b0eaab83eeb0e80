"""Row filters and column lists of a set's tables, which are those of PostgreSQL's publications.

In come words that somebody has written, and changes of the herd's log. Out go selections, as
PostgreSQL has read them, and the changes of the rows and columns that they choose. The room
promises that PostgreSQL itself decides which rows these are, and that what comes out is, at each
GID, the table under its selection.
"""
