"""The commands of ``quire``: ``topic``, ``produce``, ``read``, ``cluster``, ``bench`` and more.

A command composes: it opens a client, moves bytes between it and files, and reports the
result. Those that need bookies of their own start them as processes (``sandbox``).
``outcome`` turns errors into messages and exit codes.

Groups import the module of a command when it is invoked, which halves the time to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click


class DeferredGroup(click.Group):
    """A group that maps each command's name to its place, "package.module:object"."""

    def __init__(self, *args: Any, places: Mapping[str, str], **settings: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **settings)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order given."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or `None` if the group has none of this name."""
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that *args* begin with. For a mistyped one, suggest what was meant."""
        near = get_close_matches(args[0], self._places, n=1)
        if near and args[0] not in self._places:
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", ctx)
        return super().resolve_command(ctx, args)
