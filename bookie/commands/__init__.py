"""Commands of ``bookie``, to run, maintain and inspect bookies.

One file for each command. ``options`` holds the shared options, ``outcome`` turns errors
into messages and exit codes, ``output`` writes tables and JSON.
"""
