"""The operator's process: watches, looks, lets ``core`` decide, does it, and reports.

In come changes of resources and time; out come calls of the Kubernetes API and of sidecars. The
room promises that one worker at a time is at a herd, and that of several operators one acts.
"""
