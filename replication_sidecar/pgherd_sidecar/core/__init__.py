"""The protocols, free of IO: what members decide, and what they say to each other.

In come values; out come values. Nothing here reads a clock, a file, a configuration or chance, so
every member decides the same at the same position, and all of it runs in a simulator.
"""
