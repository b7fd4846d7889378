"""Groups of commands whose modules are imported when they are asked for.

A command starts in half the time if it does not import all others with what they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class DeferredGroup(click.Group):
    """Commands by their names, and where each one is: "package.module:object"."""

    def __init__(self, *args: Any, places: Mapping[str, str], **settings: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **settings)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were given."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, imported now; None: there is none."""
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command
