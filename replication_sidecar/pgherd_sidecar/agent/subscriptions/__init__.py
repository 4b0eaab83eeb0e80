"""Has processes apart do what subscriptions need: feed them, and carry out orders about them.

In come requests of the admin API and looks of the housekeeping; out go processes of
``subscribing``, which end with the sidecar. The room promises that nothing of a subscriber is read
in the sidecar itself, for which commits wait.
"""
