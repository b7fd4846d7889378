"""Standard output for tables."""

from __future__ import annotations

from rich.console import Console


class Output(Console):
    """A console whose reader may go away: that ends a command as it does where lines are written.

    Rich would end the process with exit code 1.
    """

    def on_broken_pipe(self) -> None:
        """Let conclude() of outcome.py end the command."""
        raise BrokenPipeError
