"""One look at a herd: its objects, and the answers of its sidecars.

In come API objects, certificates and HTTPS; out comes one ``Observed``. The room promises that an
object of somebody else's with one of our names is told apart.
"""
