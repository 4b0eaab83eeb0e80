"""The admin API from the side of those who ask: the command line, the operator, and jobs.

In come questions to one sidecar, or to all of a herd; out go typed answers, or one error that says
what to do. The room promises that an answer which does not have the documented form is an error.
"""
