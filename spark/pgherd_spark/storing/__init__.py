"""A snapshot as files: in a directory or in a bucket, with checksums.

In come rows and a layout; out come files, and the same rows from them. The room promises that a
snapshot without its manifest is none.
"""
