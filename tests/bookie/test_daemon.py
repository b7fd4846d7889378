from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import v2
from rig import settings
from running import ask, connected, known, page, registered, running

from bookie.daemon import run_bookie
from bookie.errors import BookieError
from bookie.storage import Storage
from bookie.users import secret_of, write_users
from metadata import calls
from metadata.access import Login
from metadata.errors import MetadataUnavailable
from metadata.records import BOOKIES
from metadata.sqlite import SqliteStore
from metadata.urls import open_store
from native.faults import clear_fault, plan_fault


@pytest.fixture(autouse=True)
def _no_fault_stays() -> Iterator[None]:
    yield
    clear_fault()


async def test_a_bookie_registers_serves_and_leaves(tmp_path: Path) -> None:
    config = settings(tmp_path, bookie_id="b1")
    async with open_store(config.metadata) as store:
        await known(store, 1)
        async with running(config, store) as ready:
            assert ready.bookie_id == "b1"
            (record,) = await registered(store)
            assert (record.bookie_id, record.address) == ("b1", ready.address)
            assert record.capacity > record.free > 0
            async with connected(ready.address) as peer:
                assert (await peer.ask(v2.ADD_HELLO)).code == 0
        assert await registered(store) == []
        async with running(config, store) as ready, connected(ready.address) as peer:
            assert (await peer.ask(v2.READ_HELLO)).body == v2.ENTRY_HELLO


async def test_the_pages_tell_the_state_and_the_metrics(tmp_path: Path) -> None:
    config = settings(tmp_path, metrics_port=-1)
    async with open_store(config.metadata) as store, running(config, store) as ready:
        port = ready.metrics_port
        assert await page(port, "/health") == (200, b"ok\n")
        status, body = await page(port, "/ready")
        told = {"state": "ready", "read_only": False, "stalled": False}
        assert (status, json.loads(body)) == (200, told)
        status, body = await page(port, "/metrics")
        assert status == 200
        assert b"quire_bookie_adds_total 0.0" in body
        (record,) = await registered(store)
        assert record.metrics_port == port


async def test_calls_about_the_bookie_are_answered(tmp_path: Path) -> None:
    config = settings(tmp_path, bookie_id="b1")
    async with (
        open_store(config.metadata) as store,
        running(config, store) as ready,
        connected(ready.address) as peer,
    ):
        info = await ask(peer, calls.BookieInfo())
        assert isinstance(info, calls.BookieStatus)
        assert (info.bookie_id, info.state, info.address) == ("b1", "ready", ready.address)
        await known(store, 1)
        await peer.ask(v2.ADD_HELLO)
        assert await ask(peer, calls.EntryLocation(1, 0)) == calls.EntryPlace("memtable")
        assert await ask(peer, calls.EntryLocation(1, 1)) == calls.EntryPlace("absent")
        flushed = await ask(peer, calls.FlushNow())
        assert isinstance(flushed, calls.JournalState)
        assert flushed == await ask(peer, calls.JournalMark())
        assert flushed.mark is not None
        place = await ask(peer, calls.EntryLocation(1, 0))
        assert isinstance(place, calls.EntryPlace)
        assert (place.source, place.log_id) == ("log", 1)
        page = await ask(peer, calls.LedgerStates())
        assert isinstance(page, calls.LedgerStatePage)
        assert [(row.ledger_id, row.last_entry) for row in page.ledgers] == [(1, 0)]
        assert page.ledgers[0].bytes_in_logs > 41
        logs = await ask(peer, calls.Logs())
        assert isinstance(logs, calls.LogPage)
        assert [log.open for log in logs.logs] == [True]
        report = await ask(peer, calls.CollectGarbage(major=True))
        assert isinstance(report, calls.GarbageReport)


async def test_calls_about_metadata_are_answered_from_the_store(tmp_path: Path) -> None:
    config = settings(tmp_path)
    async with (
        open_store(config.metadata) as store,
        running(config, store) as ready,
        connected(ready.address) as peer,
    ):
        version = await store.put("key", b"value")
        assert await ask(peer, calls.Get("key")) == calls.Found(b"value", version)
        assert await ask(peer, calls.Get("none")) == calls.Missing()
        answer = await peer.ask(v2.call(b"\xc1"))
        failure = calls.decode_reply(answer.rest[8:])
        assert isinstance(failure, calls.Failure)
        assert failure.kind == "BadRecord"


async def test_a_failed_sync_ends_the_bookie_without_an_acknowledgement(tmp_path: Path) -> None:
    config = settings(tmp_path)
    async with open_store(config.metadata) as store:
        acknowledged = []

        async def write(address: str) -> None:
            async with connected(address) as peer:
                acknowledged.append((await peer.ask(v2.ADD_HELLO)).code)
                plan_fault("journal_sync", 1, errno.EIO)
                await peer.stream.send_all(v2.add(1, 1))
                assert await peer.closed()

        with pytest.RaisesGroup(
            pytest.RaisesExc(OSError, match="journal in .*Input/output error.*the bookie stops")
        ):
            async with trio.open_nursery() as nursery:
                await known(store, 1)
                ready = await nursery.start(run_bookie, config, store)
                with trio.CancelScope(shield=True):
                    await write(ready.address)
        assert acknowledged == [0]
        assert await registered(store) == []


async def test_the_pages_outlive_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape that comes after the engine was closed finds no metrics, and harms nobody."""
    config = settings(tmp_path, metrics_port=-1)
    scraped = []
    stop = Storage.stop

    async def stop_and_scrape(storage: Storage) -> None:
        await stop(storage)
        scraped.append(await page(ready.metrics_port, "/metrics"))

    monkeypatch.setattr(Storage, "stop", stop_and_scrape)
    async with open_store(config.metadata) as store:
        with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="the bookie stops")):
            async with trio.open_nursery() as nursery:
                await known(store, 1)
                ready = await nursery.start(run_bookie, config, store)
                plan_fault("journal_sync", 1, errno.EIO)
                with trio.CancelScope(shield=True):
                    async with connected(ready.address) as peer:
                        await peer.stream.send_all(v2.add(1, 1))
                        assert await peer.closed()
    assert scraped == [(200, b"")]


async def test_a_bookie_that_refuses_to_start_says_why(tmp_path: Path) -> None:
    config = settings(tmp_path)
    async with open_store(config.metadata) as store:
        async with running(config, store):
            pass
        (tmp_path / "ledgers" / "lastMark").write_text("what?")
        with pytest.raises(BookieError, match="lastMark"):
            await run_bookie(config, store)
        assert await registered(store) == []


async def test_a_bookie_that_had_users_does_not_start_without_its_folder(tmp_path: Path) -> None:
    """The disk of the data folder is not mounted, and journal and ledgers are on others."""
    config = settings(tmp_path, data_folder=str(tmp_path / "data"))
    folder = tmp_path / "data" / "security"
    folder.mkdir(parents=True)
    write_users(folder / "users", {"ann": secret_of(Login("ann", "secret"))})
    (folder / "login").write_text("ann:secret")
    async with open_store(config.metadata) as store:
        await known(store, 1)
        async with running(config, store):
            pass
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(BookieError, match="Mount its disk") as refused, trio.fail_after(30):
            await run_bookie(config, store)
        assert str(folder) in str(refused.value)
        assert await registered(store) == []
        await trio.Path(str(refused.value).rpartition("remove ")[2]).unlink()
        async with running(config, store) as ready, connected(ready.address) as peer:
            assert (await peer.ask(v2.ADD_HELLO)).code == 0


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    config = settings(tmp_path, port=port)
    async with open_store(config.metadata) as store, listeners[0]:
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            await run_bookie(config, store)


async def test_a_bookie_goes_on_without_its_metadata_store_and_registers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def unavailable(*_: object, **__: object) -> None:
        asked.append(1)
        raise MetadataUnavailable("gone")

    config = settings(tmp_path, lease_ttl_s=0.3)
    async with (
        open_store(config.metadata) as store,
        running(config, store) as ready,
        connected(ready.address) as peer,
    ):
        await known(store, 1)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "keep_session", unavailable)
            patch.setattr(SqliteStore, "grant", unavailable)
            await trio.sleep(0.6)
            assert asked
            assert (await peer.ask(v2.ADD_HELLO)).code == 0
            assert await registered(store) == []
        with trio.fail_after(30):
            async with store.watch(BOOKIES) as changes:
                while not await registered(store):
                    await changes.receive()
        assert [record.address for record in await registered(store)] == [ready.address]
