"""A bookie loses its ledger table after it has trimmed its journal, and its index is rebuilt.

The machine is down meanwhile. The last checkpoint and the trim are those of a bookie that stops,
except that no journal file is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from replaced import replaced

from bookie import rebuild
from bookie.config import BookieConfig
from bookie.limbo import in_limbo
from bookie.mark import read_mark, write_mark
from native.engine import Engine, Recovery
from native.errors import Absent
from native.journal import INCARNATION, Record, scan_journal
from native.mark import Mark


class OfflineEngine(Engine):
    """An engine that does nothing by itself, so that it does the same in every run."""

    @classmethod
    def open(cls, **options: Any) -> tuple[Engine, Recovery]:  # noqa: ANN401 - as Engine's
        return super().open(**(options | {"threaded": False}))

    def flush(self) -> Mark | None:
        while self.commit():
            pass
        return super().flush()


class Held(NamedTuple):
    """What a bookie has of a ledger."""

    incarnation: int
    entries: frozenset[int]


class Loss(NamedTuple):
    """A table that was lost.

    *unnamed*: the ledgers with entries whose incarnations stood in the table and in logs alone.
    *broken*: promises that do not hold after the rebuild: the invariant, the ledger, and how.
    """

    unnamed: set[int]
    broken: list[tuple[int, int, str]]


def lose_table(config: BookieConfig) -> Loss | None:
    """Lose the table of a bookie that is down and rebuild; None if it never had a checkpoint."""
    folder = Path(config.ledger_folder)
    if read_mark(folder) is None:
        return None
    with replaced(rebuild, "Engine", OfflineEngine):
        before = _stop(config)
        unnamed = {ledger for ledger, held in before.items() if held.entries} - _named(config)
        for path in folder.glob("*.table"):
            path.unlink()
        done = rebuild.rebuild(config, lambda _step: None)
        after = _held(config)
    broken = [(1, ledger, told) for ledger, told in _compare(before, after)]
    if not (done.limbo and in_limbo(folder)):
        broken.append((4, 0, "rebuilt without a ledger table, and calls entries absent"))
    return Loss(unnamed, broken)


def _stop(config: BookieConfig) -> dict[int, Held]:
    """Flush what the journal has, and trim it; return what is there."""
    folder, found = Path(config.ledger_folder), dict[int, Held]()
    for _ in range(2):  # a file that the mark is in stays: it is new, and the second mark behind it
        mark = read_mark(folder)
        engine, _ = rebuild._open(config, folder, mark)
        with engine:
            engine.fence_all()  # as the rebuild does anyway; so there is something to flush
            flushed = rebuild._flush(engine)
            assert flushed is not None
            write_mark(folder, flushed, mark)
            engine.trim(flushed, 0)
            found = dict(_ledgers(engine))
    return found


def _held(config: BookieConfig) -> dict[int, Held]:
    folder = Path(config.ledger_folder)
    engine, _ = rebuild._open(config, folder, read_mark(folder))
    with engine:
        return dict(_ledgers(engine))


def _ledgers(engine: Engine) -> Iterator[tuple[int, Held]]:
    for state in engine.ledgers():
        if not state.deleted:
            with suppress(Absent):
                runs = engine.runs(state.ledger_id)
                entries = frozenset(e for first, last in runs for e in range(first, last + 1))
                yield state.ledger_id, Held(state.incarnation, entries)


def _compare(before: dict[int, Held], after: dict[int, Held]) -> Iterator[tuple[int, str]]:
    """Yield each ledger that has other entries now, and how."""
    for ledger, held in before.items():
        found = after.get(ledger, Held(0, frozenset()))
        if held.entries - found.entries:
            yield ledger, f"lost {sorted(held.entries - found.entries)} with the ledger table"
        if found.incarnation != held.incarnation:
            if held.entries:  # else it is as if it never had been here: the next client renews it
                yield ledger, f"was {held.incarnation:x}, and is now {found.incarnation:x}"
        elif found.entries - held.entries:
            yield ledger, f"has {sorted(found.entries - held.entries)} of a former one again"


def _named(config: BookieConfig) -> set[int]:
    """Return the ledgers of which the journal says which incarnation they are of."""
    return {
        record.ledger_id
        for path in Path(config.journal_folder).glob("*.journal")
        for record in scan_journal(path)
        if isinstance(record, Record) and record.entry_id == INCARNATION
    }
