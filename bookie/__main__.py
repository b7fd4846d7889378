"""``python -m bookie`` is the command ``bookie``; as such it is started by other programs."""

from metadata.starting import bookie

if __name__ == "__main__":
    bookie()
