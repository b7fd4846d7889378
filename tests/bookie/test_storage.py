from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import trio
import v2
from rig import MIB, needs_no_default_thread, serving, settings, until

from bookie.errors import BookieError
from bookie.limbo import FILE_NAME as LIMBO, in_limbo
from bookie.mark import FILE_NAME as MARK, read_mark
from bookie.storage import Storage
from native.engine import Engine
from native.faults import clear_fault, plan_fault


@pytest.fixture(autouse=True)
def _no_fault_stays() -> Iterator[None]:
    yield
    clear_fault()


def failing(message: str) -> AbstractContextManager[object]:
    """Expect an OSError with *message*, in whatever groups nurseries put it."""
    return pytest.RaisesGroup(
        pytest.RaisesExc(OSError, match=message), flatten_subgroups=True, allow_unwrapped=True
    )


async def write_some(folder: Path, *, count: int = 10) -> None:
    async with serving(settings(folder)) as rig:
        peer = rig.connect()
        for entry_id in range(count):
            assert (await peer.ask(v2.add(1, entry_id, b"%d" % entry_id))).code == 0


async def test_a_new_bookie_has_a_mark_before_its_first_entry(tmp_path: Path) -> None:
    storage = await Storage.open(settings(tmp_path))
    assert read_mark(tmp_path / "ledgers") == storage.mark is not None
    await storage.stop()


async def test_what_was_written_is_there_after_an_orderly_stop(tmp_path: Path) -> None:
    await write_some(tmp_path)
    async with serving(settings(tmp_path)) as rig:
        assert rig.storage.recovery.replayed_records == 0
        answer = await rig.connect().ask(v2.read(1, 9))
        assert answer.body == v2.entry(1, 9, b"9")


async def test_what_was_written_is_there_after_a_crash(tmp_path: Path) -> None:
    storage = await Storage.open(settings(tmp_path))
    connection = storage.engine.connect(1)
    connection.feed(v2.ADD_HELLO + v2.add(2, 0))
    await until(lambda: storage.engine.stats().adds == 2)
    connection.close()
    await trio.to_thread.run_sync(storage.engine.close)  # without a checkpoint
    async with serving(settings(tmp_path)) as rig:
        assert rig.storage.recovery.replayed_records > 0
        assert (await rig.connect().ask(v2.READ_HELLO)).body == v2.ENTRY_HELLO


async def test_a_checkpoint_moves_the_mark_and_without_news_it_does_not(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as rig:
        before = rig.storage.mark
        assert not await rig.storage.checkpoint()
        await rig.connect().ask(v2.ADD_HELLO)
        assert await rig.storage.checkpoint()
        assert rig.storage.mark != before
        assert read_mark(tmp_path / "ledgers") == rig.storage.mark
        assert (await rig.connect().ask(v2.READ_HELLO)).body == v2.ENTRY_HELLO


async def test_the_timer_takes_checkpoints(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, checkpoint_interval_s=0.01)) as rig:
        taken = rig.storage.checkpoints
        await rig.connect().ask(v2.ADD_HELLO)
        await until(lambda: rig.storage.checkpoints > taken)


@pytest.mark.parametrize("site", ["journal_write", "journal_sync"])
async def test_a_failed_journal_ends_the_service_without_an_acknowledgement(
    tmp_path: Path, site: str
) -> None:
    with failing("journal in .* failed .*the bookie stops"):
        async with serving(settings(tmp_path)) as rig:
            peer = rig.connect()
            assert (await peer.ask(v2.ADD_HELLO)).code == 0
            plan_fault(site, 1, errno.EIO)
            await peer.stream.send_all(v2.add(1, 1))
            assert await peer.closed()
    clear_fault()
    async with serving(settings(tmp_path)) as rig:
        assert (await rig.connect().ask(v2.READ_HELLO)).code == 0


@pytest.mark.parametrize("site", ["log_write", "log_sync", "index_sync", "table_sync"])
async def test_a_failed_flush_ends_the_service_and_loses_nothing(tmp_path: Path, site: str) -> None:
    with failing("flush to .* failed"):
        async with serving(settings(tmp_path)) as rig:
            assert (await rig.connect().ask(v2.ADD_HELLO)).code == 0
            mark = rig.storage.mark
            plan_fault(site, 1, errno.EIO, 100)
            await rig.storage.checkpoint()
    assert read_mark(tmp_path / "ledgers") == mark
    clear_fault()
    async with serving(settings(tmp_path)) as rig:
        assert (await rig.connect().ask(v2.READ_HELLO)).body == v2.ENTRY_HELLO


async def test_a_missing_mark_beside_entries_is_refused(tmp_path: Path) -> None:
    await write_some(tmp_path)
    (tmp_path / "ledgers" / MARK).unlink()
    with pytest.raises(BookieError, match="rebuild-index"):
        await Storage.open(settings(tmp_path))


async def test_a_damaged_mark_is_refused(tmp_path: Path) -> None:
    await write_some(tmp_path)
    (tmp_path / "ledgers" / MARK).write_bytes(b"quire lastMark 1\njournal_id 9\n")
    with pytest.raises(BookieError):
        await Storage.open(settings(tmp_path))


async def test_a_missing_journal_is_refused(tmp_path: Path) -> None:
    await write_some(tmp_path)
    for path in (tmp_path / "journal").glob("*.journal"):
        path.unlink()
    with pytest.raises(BookieError, match=r"\.journal: missing"):
        await Storage.open(settings(tmp_path))


async def test_in_limbo_a_missing_entry_is_an_io_error(tmp_path: Path) -> None:
    await write_some(tmp_path)
    (tmp_path / "ledgers" / LIMBO).write_text("")
    async with serving(settings(tmp_path)) as rig:
        assert rig.storage.limbo.is_on
        peer = rig.connect()
        assert (await peer.ask(v2.read(1, 10))).code == 101
        assert (await peer.ask(v2.read(7, 0))).code == 101
        assert (await peer.ask(v2.read(1, 3))).code == 0
    (tmp_path / "ledgers" / LIMBO).unlink()
    async with serving(settings(tmp_path)) as rig:
        assert (await rig.connect().ask(v2.read(1, 10))).code == 2


async def test_a_start_is_in_limbo_before_it_builds_an_index_that_lacks_a_record(
    tmp_path: Path,
) -> None:
    """BK-11: after a crash right then nothing but limbo would tell that one is missing."""
    await write_some(tmp_path)
    (log,) = (tmp_path / "ledgers").glob("*.log")
    data = bytearray(log.read_bytes())
    data[data.rindex(b"9")] ^= 1  # the payload of the last entry
    log.write_bytes(data)
    log.with_suffix(".index").unlink()
    plan_fault("index_sync", 1, errno.EIO)
    with failing("Input/output error"):
        await Storage.open(settings(tmp_path))
    assert not log.with_suffix(".index").exists()
    assert in_limbo(tmp_path / "ledgers")


async def test_an_index_that_is_built_anew_from_a_sound_log_is_no_limbo(tmp_path: Path) -> None:
    await write_some(tmp_path)
    (log,) = (tmp_path / "ledgers").glob("*.log")
    log.with_suffix(".index").unlink()
    async with serving(settings(tmp_path)) as rig:
        assert not rig.storage.limbo.is_on
        assert (await rig.connect().ask(v2.read(1, 9))).code == 0


async def test_a_full_memtable_brings_its_index_to_disk_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PS-17: at capacity, with no timer and nobody asking, while adds go on."""
    threads: list[int] = []
    flush = Engine.flush

    def noted(engine: Engine) -> object:
        threads.append(threading.get_ident())
        return flush(engine)

    monkeypatch.setattr(Engine, "flush", noted)
    async with serving(settings(tmp_path, checkpoint_interval_s=1e9)) as rig:
        peer = rig.connect()
        threads.clear()
        before = rig.storage.checkpoints
        for entry_id in range(20):
            assert (await peer.ask(v2.add(1, entry_id, bytes(MIB)))).code == 0
        await until(lambda: rig.storage.checkpoints > before)
        place = rig.storage.engine.store.find(1, 0)  # Absent: no index has it
        assert place.record_size > MIB
        assert threads
        assert threading.get_ident() not in threads
        for entry_id in (0, 19):
            assert (await peer.ask(v2.read(1, entry_id))).code == 0


async def test_a_thread_of_its_own_rolls_the_journal_by_size(tmp_path: Path) -> None:
    """PS-13: whoever adds does nothing for it, and neither does the loop."""
    async with serving(settings(tmp_path, journal_size_max=4 * MIB)) as rig:
        first = rig.storage.engine.stats().journal_id
        peer = rig.connect()
        for entry_id in range(20):
            assert (await peer.ask(v2.add(1, entry_id, bytes(MIB)))).code == 0
        newest = rig.storage.engine.stats().journal_id
        assert newest > first
        assert (tmp_path / "journal" / f"{newest:016x}.journal").exists()
        assert (await peer.ask(v2.read(1, 0))).code == 0


async def test_a_mark_that_cannot_be_written_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start that is cut short begins a journal file, and the mark still names the first."""
    for entry_id in range(4):
        storage = await Storage.open(settings(tmp_path))
        connection = storage.engine.connect(1)
        connection.feed(v2.add(1, entry_id))
        await until(lambda: storage.engine.synced() > 0)  # noqa: B023 - used within the turn
        connection.close()
        await trio.to_thread.run_sync(storage.engine.close)  # without a checkpoint
    storage = await Storage.open(settings(tmp_path))
    before = sorted(path.name for path in (tmp_path / "journal").iterdir())

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "no mark")

    with monkeypatch.context() as broken:
        broken.setattr("bookie.storage.write_mark", fail)
        with pytest.raises(OSError, match="the flush"):
            await storage.checkpoint()
        assert sorted(path.name for path in (tmp_path / "journal").iterdir()) == before
        await storage.stop()
    async with serving(settings(tmp_path)) as rig:
        peer = rig.connect()
        for entry_id in range(4):
            assert (await peer.ask(v2.read(1, entry_id))).code == 0


async def test_the_flush_and_the_stop_have_a_thread_of_their_own(tmp_path: Path) -> None:
    """Names that nobody resolves hold the others, and the bookie ended as if its disk hung."""
    storage = await Storage.open(settings(tmp_path))
    before = storage.checkpoints
    connection = storage.engine.connect(1)
    connection.feed(v2.add(1, 0))
    assert await needs_no_default_thread(storage.checkpoint)
    assert storage.checkpoints == before + 1
    connection.feed(v2.add(1, 1))
    connection.close()
    assert await needs_no_default_thread(storage.stop)
    assert storage.checkpoints == before + 2
