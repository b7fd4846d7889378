"""``open_sandbox`` for tests: a bookie that crashes in it is found at the end, whatever else is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from never_twice import check_end

from ledger_client.commands import sandbox


@asynccontextmanager
async def open_sandbox(
    count: int, *, parent: Path, settings: Sequence[str] = ()
) -> AsyncGenerator[sandbox.Sandbox]:
    """Start *count* bookies below *parent* until the block ends.

    Raises:
        NeverTwice: one of them crashed, or a sanitizer spoke.
    """
    async with sandbox.open_sandbox(count, parent=parent, settings=settings) as opened:
        try:
            yield opened
        finally:
            check_bookies(opened)


def check_bookies(opened: sandbox.Sandbox) -> None:
    """Raise NeverTwice where a bookie crashed that ran in this sandbox."""
    file = opened.folder / "standalone.log"
    log = file.read_text(errors="replace") if file.exists() else ""
    check_end(None, log)
    for process in opened._restarted:
        check_end(process.poll(), log)
