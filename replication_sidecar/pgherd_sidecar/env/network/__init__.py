"""Links between members: TLS, frames, and connections that may break at any moment.

In come messages; out come messages. The room promises that both ends have proved with certificates
who they are before anything else is read, that memory is bounded, and nothing about delivery: a
message may be lost, and those that arrive do so in the order of one connection.
"""
