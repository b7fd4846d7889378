from __future__ import annotations

from pathlib import Path

import pytest
import trio
from damaged import ENTRIES, LEDGER, ward
from rig import needs_no_default_thread

from bookie.damage import AGAIN_S, join, may_hide_entries
from bookie.limbo import in_limbo
from metadata.calls import DamagedPlace
from metadata.errors import MetadataUnavailable
from metadata.records import (
    DamagedRun,
    UnderReplicated,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from metadata.sqlite import SqliteStore


async def test_damage_that_a_read_met_is_brought_to_repair(tmp_path: Path) -> None:
    async with ward(tmp_path, damaged=(3, 4, 7)) as here:
        for entry_id in (3, 4, 5, 7):
            assert await here.code(entry_id) == (0 if entry_id == 5 else 101)
        await here.upkeep.watch.look()
        mark = await here.mark()
        assert mark is not None
        assert (mark.reason, mark.bookies) == ("damaged", ["b1"])
        assert mark.damaged == [DamagedRun("b1", 3, 4), DamagedRun("b1", 7, 7)]
        assert here.upkeep.watch.marked == 3


async def test_damage_of_a_known_entry_is_no_limbo(tmp_path: Path) -> None:
    """BK-11: the entry itself is not denied; the others may be."""
    async with ward(tmp_path) as here:
        assert await here.code(5) == 101
        await here.upkeep.watch.look()
        assert not here.rig.storage.limbo.is_on
        assert await here.code(ENTRIES) == 2


async def test_damage_is_told_once_however_often_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ward(tmp_path) as here:
        for _ in range(3):
            assert await here.code(5) == 101
            await here.upkeep.watch.look()
        assert len([line for line in caplog.messages if line.startswith("damaged: ")]) == 1
        assert here.upkeep.watch.marked == 1


async def test_a_mark_that_is_there_keeps_what_it_says(tmp_path: Path) -> None:
    """But not that this bookie is whole."""
    known = UnderReplicated(
        LEDGER, "bookie lost", 7, ["b0"], [DamagedRun("b1", 4, 4)], attempts=2, whole=["b1", "b2"]
    )
    async with ward(tmp_path) as here:
        await here.store.put(underreplicated_key(LEDGER), encode_record(known))
        assert await here.code(5) == 101
        await here.upkeep.watch.look()
        mark = await here.mark()
        assert mark is not None
        assert (mark.reason, mark.since_ms, mark.attempts) == ("bookie lost", 7, 2)
        assert mark.bookies == ["b0", "b1"]
        assert mark.damaged == [DamagedRun("b1", 4, 5)]
        assert mark.whole == ["b2"]


async def test_a_mark_that_cannot_be_read_is_put_anew(tmp_path: Path) -> None:
    """A later version may have written it. Damage of other ledgers would wait behind it."""
    async with ward(tmp_path) as here:
        await here.store.put(underreplicated_key(LEDGER), b"{}")
        assert await here.code(5) == 101
        await here.upkeep.watch.look()
        mark = await here.mark()
        assert mark is not None
        assert mark.damaged == [DamagedRun("b1", 5, 5)]


async def test_where_the_entry_is_not_known_the_whole_ledger_is_to_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ward(tmp_path, damaged=()) as here:
        place = DamagedPlace("00000001.log", 4096, LEDGER)
        monkeypatch.setattr(here.rig.storage.damage, "fetch", lambda _now: [place])
        await here.upkeep.watch.look()
        mark = await here.mark()
        assert mark is not None
        assert (mark.bookies, mark.damaged) == (["b1"], [])
        assert not here.rig.storage.limbo.is_on


async def test_a_ledger_that_the_metadata_does_not_know_is_not_marked(tmp_path: Path) -> None:
    async with ward(tmp_path) as here:
        await here.store.delete(ledger_key(LEDGER))
        assert await here.code(5) == 101
        await here.upkeep.watch.look()
        assert await here.mark() is None


async def test_without_the_metadata_damage_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise MetadataUnavailable("gone")

    async with ward(tmp_path) as here:
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "put", unavailable)
            assert await here.code(5) == 101
            await here.upkeep.watch.look()
        assert await here.mark() is None
        await here.upkeep.watch.look()
        assert await here.mark() is not None


async def test_a_damaged_record_of_unknown_content_leads_to_limbo(tmp_path: Path) -> None:
    """BK-11: it may have been any entry, so none is denied any more."""
    async with ward(tmp_path, damaged=()) as here:
        place = DamagedPlace(str(tmp_path / "ledgers" / "00000001.log"), 4096)
        assert may_hide_entries(place)
        assert await here.code(ENTRIES) == 2
        await trio.to_thread.run_sync(here.rig.storage.limbo.enter, [place])
        assert await here.code(ENTRIES) == 101
        assert in_limbo(tmp_path / "ledgers")


async def test_limbo_is_entered_in_a_thread_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that nobody resolves hold the others, and entries may be denied meanwhile."""
    async with ward(tmp_path, damaged=()) as here:
        place = DamagedPlace(str(tmp_path / "ledgers" / "00000001.log"), 4096)
        monkeypatch.setattr(here.rig.storage.damage, "fetch", lambda _: [place])
        assert await needs_no_default_thread(here.upkeep.watch.look)
        assert in_limbo(tmp_path / "ledgers")


@pytest.mark.parametrize(
    ("spans", "joined"),
    [
        ([], []),
        ([(1, 1), (2, 2)], [(1, 2)]),
        ([(5, 9), (1, 3)], [(1, 3), (5, 9)]),
        ([(1, 9), (2, 3)], [(1, 9)]),
        ([(1, 4), (3, 6), (8, 8)], [(1, 6), (8, 8)]),
    ],
)
def test_runs_that_touch_are_one(
    spans: list[tuple[int, int]], joined: list[tuple[int, int]]
) -> None:
    assert join(spans) == joined


async def test_an_entry_that_is_met_again_later_is_marked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Repair may have dropped the mark meanwhile, since it could read the entry."""
    async with ward(tmp_path) as here:
        for again_s, marked in ((AGAIN_S, True), (AGAIN_S, False), (0.0, True)):
            monkeypatch.setattr("bookie.damage.AGAIN_S", again_s)
            assert await here.code(5) == 101
            await here.upkeep.watch.look()
            assert (await here.mark() is not None) is marked
            await here.store.delete(underreplicated_key(LEDGER))
        assert len([line for line in caplog.messages if line.startswith("damaged: ")]) == 1
