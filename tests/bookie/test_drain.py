from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
import v2
from rig import settings
from running import ask, connected, known, page, registered, running

from metadata import calls
from metadata.errors import MetadataUnavailable
from metadata.records import (
    BOOKIES,
    Draining,
    cookie_key,
    decode_cookie,
    draining_key,
    encode_record,
)
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore
from metadata.urls import open_store

KEY = draining_key("b1")
DRAINING = encode_record(Draining("b1", 1))


async def until_registered(store: MetadataStore, *, draining: bool) -> None:
    """Wait until the registration says so."""
    with trio.fail_after(30):
        async with store.watch(BOOKIES) as changes:
            while [each.draining for each in await registered(store)] != [draining]:
                await changes.receive()


async def test_a_draining_bookie_takes_entries_of_recoveries_only(tmp_path: Path) -> None:
    config = settings(tmp_path, bookie_id="b1", lease_ttl_s=0.3, metrics_port=-1)
    async with open_store(config.metadata) as store:
        async with running(config, store) as ready, connected(ready.address) as peer:
            await known(store, 1)
            assert (await peer.ask(v2.ADD_HELLO)).code == 0
            await store.put(KEY, DRAINING)
            await until_registered(store, draining=True)
            assert (await registered(store))[0].read_only
            assert (await peer.ask(v2.add(1, 1))).code == 105
            recovered = v2.add(1, 1, flags=v2.RECOVERY | v2.PRIORITY)
            assert (await peer.ask(recovered)).code == 0
            assert (await peer.ask(v2.READ_HELLO)).code == 0
            told = await ask(peer, calls.BookieInfo())
            assert isinstance(told, calls.BookieStatus)
            assert (told.draining, told.read_only) == (True, True)
            assert b"quire_bookie_draining 1.0" in (await page(ready.metrics_port, "/metrics"))[1]
        async with running(config, store) as ready, connected(ready.address) as peer:
            assert [each.draining for each in await registered(store)] == [True]
            assert (await peer.ask(v2.add(1, 2))).code == 105
            await store.delete(KEY)
            await until_registered(store, draining=False)
            assert (await peer.ask(v2.add(1, 2))).code == 0


async def test_a_bookie_whose_name_a_successor_took_while_it_hung_takes_no_entries(
    tmp_path: Path,
) -> None:
    """BK-20: recoveries ask and fence the successor, so this one must acknowledge no more."""
    config = settings(tmp_path, bookie_id="b1", lease_ttl_s=0.3)
    async with (
        open_store(config.metadata) as store,
        running(config, store) as ready,
        connected(ready.address) as peer,
    ):
        await known(store, 1)
        assert (await peer.ask(v2.ADD_HELLO)).code == 0
        found = await store.get(cookie_key("b1"))
        assert found is not None
        own = decode_cookie(cookie_key("b1"), found.value)
        successor = msgspec.structs.replace(own, cookie_id="of the successor")
        await store.put(cookie_key("b1"), encode_record(successor))
        await until_registered(store, draining=True)
        assert (await peer.ask(v2.add(1, 1))).code == 105
        assert (await peer.ask(v2.READ_HELLO)).code == 0


async def test_while_the_metadata_is_away_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def unavailable(*_: object, **__: object) -> None:
        asked.append(1)
        raise MetadataUnavailable("gone")

    config = settings(tmp_path, bookie_id="b1", lease_ttl_s=0.3)
    async with open_store(config.metadata) as store:
        await store.put(KEY, DRAINING)
        async with running(config, store) as ready, connected(ready.address) as peer:
            with monkeypatch.context() as patch:
                patch.setattr(SqliteStore, "get", unavailable)
                with trio.fail_after(30):
                    while len(asked) < 2:  # noqa: ASYNC110 - nothing rings
                        await trio.sleep(0.01)
                assert (await peer.ask(v2.add(1, 0))).code == 105
