"""What the command ``quire`` can do: ``topic``, ``ledger``, ``cluster``, ``demo``, ``bench``.

A command composes: it opens a client, moves bytes between it and files, and
says what came of it. Where it needs bookies of its own it starts them as
processes (``sandbox``). ``outcome`` turns errors into messages and exit codes.
"""
