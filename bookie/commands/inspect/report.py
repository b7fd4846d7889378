"""Report of damage: printed where it is found, and counted for the exit code."""

from __future__ import annotations

from pathlib import Path

import click

from bookie.commands.output import print_json
from metadata.outcome import Exit


class DamageReport:
    """Prints damages and counts them.

    Args:
        as_json: print each damage as a line of JSON on stdout, among the other lines;
            otherwise as text on stderr.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.damages = 0

    def damage(self, path: Path, offset: int, what: str = "") -> None:
        """Print one damage at once, and count it; *what* names the damaged part."""
        self.damages += 1
        if self._as_json:
            print_json({"damage": str(path), "offset": offset, "what": what})
        else:
            click.echo(f"damaged: {path} at offset {offset}{what and f' ({what})'}", err=True)

    def conclude(self) -> None:
        """End the command with exit code 1 if any damage was reported."""
        if self.damages:
            raise click.exceptions.Exit(Exit.FAILED)
