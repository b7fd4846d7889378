"""What the command ``bookie`` can do: run, look after and look into bookies.

One file for each command. ``options`` holds what several take, ``outcome`` turns
errors into messages and exit codes, ``output`` writes tables and JSON.
"""
