"""Looking into a bookie's files, without changing anything.

One module for each kind of file. Everything here may be used while the bookie runs:
it reads only what the last checkpoint vouches for, or what carries checksums. Damage
is told as a value, with file and offset, so that a look goes on behind it.
"""
