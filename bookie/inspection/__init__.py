"""Inspection of a bookie's files, without changing anything.

One module for each kind of file. All of them may be used while the bookie runs: they read
only data that the last checkpoint covers, or that has checksums. Damage is returned as a
value with file and offset, so that reading continues after it.
"""
