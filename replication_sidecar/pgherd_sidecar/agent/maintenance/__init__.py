"""Scheduled maintenance: work of one server each, done by the members' own sidecars in turns.

Ordinary rows of the herd say what is wanted, whose turn it is and what became of it, so all members
know the same. A member takes its turn by a transaction that another one's would conflict with.
``requests`` makes the rows that people and the operator ask for, ``keeper`` looks at them every
second, ``guard`` says whether a member can be spared, and ``work`` takes it out of service, does
the work and brings it back.

Out go statements to the server beside the sidecar. The room promises that no two members are in
maintenance when only a majority would be left, and that no member stays out of service when its
work has ended, in whatever way.
"""
