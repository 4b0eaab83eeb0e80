"""Faults for herds of real processes, and the nemesis that composes them from a seed.

``wires`` delay, lose, tear and silence what members send each other; ``machines`` gives each node
a clock that jumps and one of them a disk that fills; ``nemesis`` draws what happens when.
``integration/test_faults.py`` runs it under load and has the checkers judge what clients saw.
"""
