"""Operations on a whole cluster: overview, usage, verification, rebalancing, draining.

Each is the library behind a command (``quire cluster``, ``quire ledger verify``, ``bookie
decommission``). None needs a terminal: progress goes to a callback, results are structs,
and cancellation is safe at any moment.
"""
