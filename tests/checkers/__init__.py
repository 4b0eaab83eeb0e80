"""Judges of histories: what clients were told and saw, against what a herd promises.

``history`` holds what is judged, ``si`` judges with the total order in hand (linear time), ``elle``
infers an order from the lists that were read and looks for cycles. Two independent judgements of
the same promise, so that a mistake in one of them shows. Pure functions, no IO; the clients that
record histories are in ``tests/workloads``.
"""
