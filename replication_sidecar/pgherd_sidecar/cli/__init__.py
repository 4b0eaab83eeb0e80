"""The commands: options, what is asked of other packages, and how the answer is printed.

In come words of a command line; out go text or JSON and an exit status. No command does the work
itself: it is done in ``local``, ``client``, ``importing`` or the jobs. Other modules are imported
when a command needs them, so that ``--help`` is quick.
"""
