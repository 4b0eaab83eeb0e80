"""What the herd and its subscribers hold of subscriptions, and how to read and write it.

    herd         sets and subscriptions, in ordinary tables of the herd
    sets         which tables a pattern means
    subscriber   a subscriber: the GID that it shows, and who may write it
    connections  sessions there
    holdings     its tables, as it says itself
    placing      its tables: copies, places and guards
    numbering    its sequences
    turn         who feeds it, if it is a herd
    forwardlog   the log that a subscriber keeps which feeds others
    orders       what such a subscriber is told, and what it tells
    steps        changes of the herd's log as changes of the subscriber's tables

In come sessions, out go values. Nothing here waits or decides whose turn it is, but where the
subscriber is a herd.
"""
