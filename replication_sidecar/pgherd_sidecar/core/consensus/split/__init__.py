"""Members without a quorum that go on for good as a cluster of their own: decisions and steps.

In come what a member sees of the others, and an administrator's word; out come the steps that it
has to take with its log. The room promises that no member takes part in two agreements.
"""
