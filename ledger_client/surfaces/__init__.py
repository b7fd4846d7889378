"""The base classes of blocking.py and aio.py, which are generated."""
