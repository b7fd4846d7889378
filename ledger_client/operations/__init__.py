"""What is done with a whole cluster: look at it, verify, empty and level its bookies.

Each is a library behind a command (``quire cluster``, ``quire ledger verify``, ``bookie
decommission``), without a terminal: it takes a Client and a MetadataStore, tells how
far it is by what it returns or calls, and can be cancelled at any moment.
"""
