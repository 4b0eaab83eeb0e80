"""The Kubernetes API as the operator uses it: a narrow interface, and HTTP behind it.

In come calls and watches; out come manifests, Events, and one kind of error for each way to fail.
"""
