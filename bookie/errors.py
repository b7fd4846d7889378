"""What can go wrong with a bookie."""


class BookieError(Exception):
    """Root of what a bookie reports."""
