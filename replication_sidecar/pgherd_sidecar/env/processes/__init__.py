"""Processes of this machine: detached ones, PostgreSQL's programs as children, and their pace.

In come command lines; out come exit statuses. The room promises that a recycled pid is never
signalled, and that a child does not outlive the sidecar.
"""
