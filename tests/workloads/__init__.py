"""Clients that load a herd and record what they were told and saw, for ``tests/checkers``.

``recorder`` collects, ``client`` runs transactions and rides out failures, ``bodies`` are the
transactions of each workload, ``outcomes`` asks the herd where each of them is in the order.
Nothing here starts or kills servers, and nothing judges.
"""
