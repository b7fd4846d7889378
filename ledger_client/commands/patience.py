"""Waits of commands that a user would otherwise wonder about: after two seconds they are explained.

The client logs a warning when no bookie answers (wire/stores.py). Here are the waits that only a
command can explain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click
import trio

SAID_S = 2.0


class Patience:
    """Explains, once, a wait that lasts longer than SAID_S.

    Args:
        text: what is waited for, and what the user may look at.
    """

    def __init__(self, text: str) -> None:
        self._text = f"quire: {text}"
        self._said = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Explain the block on stderr once it has lasted SAID_S."""
        scope = trio.CancelScope()
        # No task of a nursery: the block may open something that outlives it.
        trio.lowlevel.spawn_system_task(self._explain, scope)
        try:
            yield
        finally:
            scope.cancel()

    async def _explain(self, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(SAID_S)
            if not self._said:
                self._said = True
                with suppress(OSError):  # nobody reads it any more
                    click.echo(self._text, err=True)
