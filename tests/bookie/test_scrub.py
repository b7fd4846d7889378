from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
import v2
from damaged import ENTRIES, LEDGER, damage, ward
from rig import settings

from bookie import scrub
from bookie.limbo import in_limbo
from metadata.calls import ScrubReport
from metadata.records import DamagedRun, underreplicated_key
from native.store import scan_log


async def test_scrubbing_finds_damage_that_nobody_read(tmp_path: Path) -> None:
    async with ward(tmp_path, damaged=(2, 3, 8)) as here:
        report = await here.upkeep.scrubber.check()
        places = [(each.ledger_id, each.entry_id, each.last_entry) for each in report.damaged]
        assert places == [(LEDGER, 2, 3), (LEDGER, 8, -1)]
        assert report.damaged_count == here.upkeep.scrubber.damaged == 3
        assert report.checked_size > 0
        mark = await here.mark()
        assert mark is not None
        assert mark.damaged == [DamagedRun("b1", 2, 3), DamagedRun("b1", 8, 8)]
        assert not here.rig.storage.limbo.is_on


async def test_the_report_counts_all_damage_and_repair_hears_of_it(tmp_path: Path) -> None:
    """Of more than a thousand damaged records, the others were neither counted nor marked."""
    count = 1100
    async with ward(tmp_path, damaged=()) as here:
        for entry_id in range(ENTRIES, count):
            assert (await here.peer.ask(v2.add(LEDGER, entry_id, bytes(100)))).code == 0
        await here.rig.storage.checkpoint()
    damage(tmp_path, range(count))
    async with ward(tmp_path, damaged=None) as here:
        report = await here.upkeep.scrubber.check()
        assert report.damaged_count == here.upkeep.scrubber.damaged == count
        mark = await here.mark()
        assert mark is not None
        assert mark.damaged == [DamagedRun("b1", 0, count - 1)]
        assert here.upkeep.watch.marked == count


async def test_a_sound_bookie_has_nothing_to_report(tmp_path: Path) -> None:
    async with ward(tmp_path, damaged=()) as here:
        report = await here.upkeep.scrubber.check()
        assert (report.damaged, report.damaged_count) == ([], 0)
        assert await here.mark() is None


async def test_damage_is_told_again_in_every_round_until_it_is_repaired(tmp_path: Path) -> None:
    async with ward(tmp_path) as here:
        for _ in range(2):
            assert (await here.upkeep.scrubber.check()).damaged_count == 1
            assert await here.mark() is not None
            await here.store.delete(underreplicated_key(LEDGER))
        again = v2.add(LEDGER, 5, bytes(100), flags=v2.RECOVERY)
        assert (await here.peer.ask(again)).code == 0
        await here.rig.storage.checkpoint()
        assert await here.code(5) == 0
        assert (await here.upkeep.scrubber.check()).damaged_count == 0
        assert await here.mark() is None


async def test_a_record_of_unknown_content_leads_to_limbo(tmp_path: Path) -> None:
    """BK-11: the index was built from a log in which nobody could read what it held."""
    async with ward(tmp_path, damaged=()) as here:
        (log,) = (tmp_path / "ledgers").glob("*.log")
        victim = next(each for each in scan_log(log) if getattr(each, "entry_id", -1) == 5)
    content = bytearray(log.read_bytes())
    content[victim.offset + 10] ^= 1
    log.write_bytes(content)
    log.with_suffix(".index").unlink()
    async with ward(tmp_path, damaged=None) as here:
        assert here.rig.storage.limbo.is_on
        assert in_limbo(tmp_path / "ledgers")
        assert await here.code(5) == 101


async def test_the_first_round_waits_and_the_next_comes_a_day_later(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[float] = []

    async def note(_: scrub.Scrubber, bytes_per_s: int, *, closed_only: bool) -> ScrubReport:
        assert (bytes_per_s, closed_only) == (10 << 20, True)
        rounds.append(trio.current_time())
        await trio.sleep(1000)
        return ScrubReport(0)

    monkeypatch.setattr(scrub.Scrubber, "check", note)
    scrubber = scrub.Scrubber(None, None, None, settings(tmp_path))  # type: ignore[arg-type]  # not asked
    started = trio.current_time()
    with trio.move_on_after(2 * scrub.ROUND_S):
        await scrubber.run()
    assert [at - started for at in rounds] == [scrub.FIRST_S, scrub.FIRST_S + scrub.ROUND_S]
