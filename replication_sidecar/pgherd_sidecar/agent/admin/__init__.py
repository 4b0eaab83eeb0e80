"""The admin API: what people, the operator and jobs can ask of a running sidecar.

In comes HTTP on a Unix socket, or over TLS with a certificate; out go calls of the ``port``, whose
answers become JSON. The room promises that a caller can do only what its socket or its certificate
allows. It decides nothing about the herd. Health pages and metrics change nothing.
"""
