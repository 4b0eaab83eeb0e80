"""The ordered log of one member as a running thing: the consensus core, its disk and its links.

In come submissions and the messages of peers; out come committed blocks in order, and the state of
the log. The room promises what ``core.consensus`` promises, because it does all that the core asks
for and adds nothing. The log on the disk survives a restart; submissions do not.
"""
