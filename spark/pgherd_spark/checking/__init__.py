"""The consistency job: compares every table and definition on all members at one GID.

In come members at a marker; out come findings, a verdict and a report.
"""
