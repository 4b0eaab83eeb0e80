"""The reconciler, pure: from what was observed to the steps to take, in the order of their risk.

In come ``Observed`` values; out come actions and a status. The room promises that a look without
an answer is never taken for an answer: ``unknown`` is a value.
"""
