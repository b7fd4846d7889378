from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import v2
from rig import serving, settings
from running import ask, connected, known, page, registered, running

from bookie.config import BookieConfig
from bookie.host import Host
from bookie.limbo import Limbo, enter_limbo, in_limbo, leave_limbo
from bookie.lost_records import fence_forgotten
from metadata import calls
from metadata.errors import MetadataUnavailable
from metadata.records import BOOKIES, Fragment, LedgerRecord, LedgerState, encode_record, ledger_key
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore
from metadata.urls import open_store

LEDGER = 7
ME, OTHER = "b1", "b2"


def record(
    ledger_id: int = LEDGER,
    *,
    state: LedgerState = LedgerState.OPEN,
    bookies: Sequence[str] = (ME,),
) -> LedgerRecord:
    """A ledger whose fragments have one bookie each."""
    fragments = [Fragment(10 * i, [bookie]) for i, bookie in enumerate(bookies)]
    return LedgerRecord(ledger_id, 1, 1, 1, state, fragments)


async def put(store: MetadataStore, ledger: LedgerRecord) -> None:
    await store.put(ledger_key(ledger.ledger_id), encode_record(ledger))


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    return settings(tmp_path, bookie_id=ME, metrics_port=-1)


def push_into_limbo(config: BookieConfig) -> None:
    folder = Path(config.ledger_folder)
    folder.mkdir(parents=True, exist_ok=True)
    enter_limbo(folder, [calls.DamagedPlace("gone", 0)])


async def code(address: str, request: bytes) -> int:
    async with connected(address) as peer:
        return (await peer.ask(request)).code


async def test_a_bookie_in_limbo_denies_nothing_and_says_so(config: BookieConfig) -> None:
    """BK-11: what is missing may have been here; what is here is served."""
    push_into_limbo(config)
    async with open_store(config.metadata) as store, running(config, store) as ready:
        await known(store, 1)
        assert await code(ready.address, v2.add(1, 0)) == 0
        assert await code(ready.address, v2.read(1, 0)) == 0
        assert await code(ready.address, v2.read(1, 1)) == 101
        assert await code(ready.address, v2.read(LEDGER, 0)) == 101
        assert await code(ready.address, v2.add(1, 5, lac=4)) == 0
        assert await code(ready.address, v2.read_wait(1, 2, known_lac=-1, wait_ms=0)) == 101
        assert await code(ready.address, v2.batch_read(LEDGER, 0)) == 101
        async with connected(ready.address) as peer:
            told = await ask(peer, calls.BookieInfo())
            assert isinstance(told, calls.BookieStatus)
            assert told.limbo
            assert await ask(peer, calls.LedgerRuns(1)) == calls.RunPage([(0, 0), (5, 5)])
            assert await ask(peer, calls.LedgerRuns(LEDGER)) == calls.RunPage([])
        assert [(each.limbo, each.read_only) for each in await registered(store)] == [(True, False)]
        _, metrics = await page(ready.metrics_port, "/metrics")
        assert b"quire_bookie_limbo 1.0" in metrics


FENCED = {
    "recovered, and named": record(state=LedgerState.IN_RECOVERY),
    "recovered elsewhere": record(state=LedgerState.IN_RECOVERY, bookies=[OTHER]),
    "closed, and named": record(state=LedgerState.CLOSED),
    "closed, and moved away": record(state=LedgerState.CLOSED, bookies=[OTHER]),
    "open, and written here": record(bookies=[OTHER, ME]),
}
TAKEN = {
    "open, and written elsewhere": record(bookies=[ME, OTHER]),
    "open, and never here": record(bookies=[OTHER]),
}


@pytest.mark.parametrize("case", FENCED)
async def test_in_limbo_a_writer_who_may_have_been_stopped_is_refused(
    config: BookieConfig, case: str
) -> None:
    """BK-07: a fence that was forgotten is there again before the first connection."""
    push_into_limbo(config)
    async with open_store(config.metadata) as store:
        await put(store, FENCED[case])
        async with running(config, store) as ready:
            assert await code(ready.address, v2.add(LEDGER, 0)) == 104
            assert await code(ready.address, v2.add(LEDGER, 0, flags=v2.RECOVERY)) == 0
        leave_limbo(Path(config.ledger_folder))
        async with running(config, store) as ready:
            assert await code(ready.address, v2.add(LEDGER, 1)) == 104


async def test_what_was_forgotten_is_fenced_durably(tmp_path: Path, config: BookieConfig) -> None:
    """BK-07: a power loss right after the first connection finds the fences again."""
    async with open_store(config.metadata) as store:
        await put(store, record(state=LedgerState.CLOSED))
        async with serving(config) as rig:
            assert (await rig.connect().ask(v2.add(1, 0))).code == 0
            assert await fence_forgotten(rig.storage, store, ME) == 1
            await trio.to_thread.run_sync(shutil.copytree, tmp_path, tmp_path.with_name("crashed"))
    crashed = settings(tmp_path.with_name("crashed"))
    async with serving(crashed) as rig:
        peer = rig.connect()
        assert [(await peer.ask(v2.add(each, 1))).code for each in (1, LEDGER)] == [104, 104]


@pytest.mark.parametrize("case", TAKEN)
async def test_in_limbo_a_writer_who_was_never_stopped_here_is_served(
    config: BookieConfig, case: str
) -> None:
    push_into_limbo(config)
    async with open_store(config.metadata) as store:
        await put(store, TAKEN[case])
        async with running(config, store) as ready:
            assert await code(ready.address, v2.add(LEDGER, 0)) == 0


async def test_in_limbo_every_ledger_that_is_here_is_fenced(config: BookieConfig) -> None:
    """BK-07: of a ledger that the metadata does not know nobody can say that it was not."""
    async with open_store(config.metadata) as store:
        await known(store, 1, 2)
        async with running(config, store) as ready:
            assert await code(ready.address, v2.add(1, 0)) == 0
        push_into_limbo(config)
        async with running(config, store) as ready:
            assert await code(ready.address, v2.add(1, 1)) == 104
            assert await code(ready.address, v2.add(2, 0)) == 0


async def test_in_limbo_it_does_not_serve_without_the_metadata(
    config: BookieConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise MetadataUnavailable("gone")

    async with open_store(config.metadata) as store:
        async with running(config, store):
            pass
        push_into_limbo(config)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "list", unavailable)
            with pytest.RaisesGroup(MetadataUnavailable, flatten_subgroups=True):
                async with running(config, store):
                    pass
        assert await registered(store) == []


async def test_a_bookie_without_data_that_ledgers_name_is_in_limbo(config: BookieConfig) -> None:
    """BK-11: it was formatted, or given new disks, and must not deny what it had."""
    async with open_store(config.metadata) as store:
        await put(store, record(bookies=[ME, OTHER], state=LedgerState.CLOSED))
        async with running(config, store) as ready:
            assert await code(ready.address, v2.read(LEDGER, 0)) == 101
        async with running(config, store) as ready:
            assert await code(ready.address, v2.read(LEDGER, 0)) == 101


async def test_a_new_bookie_that_no_ledger_names_is_not_in_limbo(config: BookieConfig) -> None:
    async with open_store(config.metadata) as store:
        await put(store, record(bookies=[OTHER]))
        async with running(config, store) as ready:
            assert await code(ready.address, v2.read(LEDGER, 0)) == 1


async def test_limbo_ends_durably_and_the_registration_says_so(config: BookieConfig) -> None:
    push_into_limbo(config)
    limbo: list[bool] = []

    async def leave(host: Host) -> None:
        assert not await host.leave_limbo(doubts=host.doubts - 1)
        limbo.append(host.limbo)
        assert await host.leave_limbo(doubts=host.doubts)
        limbo.append(host.limbo)
        await trio.sleep_forever()

    async with open_store(config.metadata) as store:
        async with running(config, store, leave) as ready:
            with trio.fail_after(30):
                async with store.watch(BOOKIES) as changes:
                    while (await registered(store))[0].limbo:
                        await changes.receive()
            assert await code(ready.address, v2.read(LEDGER, 0)) == 1
            assert limbo == [True, False]
        assert not in_limbo(Path(config.ledger_folder))
        async with running(config, store) as ready:
            assert await code(ready.address, v2.read(LEDGER, 0)) == 1


class NotingEngine:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def set_limbo(self, limbo: bool) -> None:
        self.told.append(limbo)


def test_limbo_is_denied_to_nobody_before_it_is_written_down(tmp_path: Path) -> None:
    """A disk that cannot keep limbo over a restart does not keep it from being there now."""
    engine = NotingEngine()
    limbo = Limbo(tmp_path / "missing", engine)  # type: ignore[arg-type]  # a fake
    with pytest.raises(FileNotFoundError):
        limbo.enter(())
    assert (engine.told, limbo.is_on) == ([True], True)
    with pytest.raises(FileNotFoundError):
        limbo.leave()
    assert limbo.is_on


def test_a_reason_that_comes_while_limbo_ends_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = NotingEngine()
    limbo = Limbo(tmp_path, engine)  # type: ignore[arg-type]  # a fake
    limbo.enter(())
    found = threading.Thread(target=limbo.enter, args=((),))

    def leave_while_damage_is_found(folder: Path) -> None:
        leave_limbo(folder)
        found.start()
        found.join(0.1)

    monkeypatch.setattr("bookie.limbo.leave_limbo", leave_while_damage_is_found)
    doubts = limbo.entered
    limbo.leave()
    found.join()
    assert limbo.is_on
    assert engine.told[-1]
    assert in_limbo(tmp_path)
    assert not limbo.leave(doubts=doubts), "nobody looked since"
    assert limbo.is_on
