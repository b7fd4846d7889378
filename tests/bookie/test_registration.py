"""Registrations of bookies whose name another process has, with a copy of the folders."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import v2
from daemons import free_ports
from leases import grant
from rig import settings
from running import registered, running

from bookie.config import BookieConfig
from bookie.cookie_file import CookieRefused
from bookie.lock import lock_id
from metadata.records import (
    BookieRecord,
    bookie_lease,
    cookie_key,
    decode_cookie,
    encode_record,
)
from metadata.store import MetadataStore, StoreSession
from metadata.urls import open_store

NAME = bookie_lease("b1")
ELSEWHERE = encode_record(BookieRecord("b1", "10.0.0.9:3181", 1, 1))


async def begin(config: BookieConfig, store: MetadataStore) -> str:
    """Make the bookie, and return the id of its cookie."""
    async with running(config, store):
        found = await store.get(cookie_key("b1"))
        assert found is not None
        return decode_cookie(cookie_key("b1"), found.value).cookie_id


async def test_a_copy_does_not_serve_beside_the_bookie_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(tmp_path, bookie_id="b1", lease_ttl_s=0.5)
    async with open_store(config.metadata) as store:
        cookie_id = await begin(config, store)
        theirs = await grant(store, NAME, f"{cookie_id}/there", ttl_s=600, value=ELSEWHERE)
        served_at = r"bookie b1: another process serves with these data at 10\.0\.0\.9:3181; stop"
        with pytest.RaisesGroup(
            pytest.RaisesExc(CookieRefused, match=served_at), flatten_subgroups=True
        ):
            async with running(config, store):
                pass
        assert [lease.epoch for lease in await store.leases(NAME)] == [theirs.epoch]
        assert "waiting for up to 2 s, as it may be over: bookie b1: another" in caplog.text


async def test_a_copy_answers_nobody_while_it_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients may know its address already, as that of the bookie itself."""
    port = free_ports(1)
    config = settings(tmp_path, bookie_id="b1", lease_ttl_s=0.5, port=port)
    answered: list[bytes | bytearray] = []

    async def call() -> None:
        while "waiting for up to" not in caplog.text:  # noqa: ASYNC110 - nobody is told
            await trio.sleep(0.05)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(v2.READ_HELLO)
                answered.append(await stream.receive_some())

    async with open_store(config.metadata) as store:
        cookie_id = await begin(config, store)
        await grant(store, NAME, f"{cookie_id}/there", ttl_s=600, value=ELSEWHERE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            with pytest.RaisesGroup(pytest.RaisesExc(CookieRefused), flatten_subgroups=True):
                async with running(config, store):
                    pass
            nursery.cancel_scope.cancel()
    assert answered in ([], [b""])


async def test_a_bookie_that_was_killed_serves_elsewhere_once_its_registration_is_over(
    tmp_path: Path,
) -> None:
    config = settings(tmp_path, bookie_id="b1")
    async with open_store(config.metadata) as store:
        cookie_id = await begin(config, store)
        await grant(store, NAME, f"{cookie_id}/there", ttl_s=1, value=ELSEWHERE)
        async with running(config, store) as ready:
            assert [each.address for each in await registered(store)] == [ready.address]


async def test_a_bookie_that_was_killed_registers_again_at_once_on_its_host(
    tmp_path: Path,
) -> None:
    config = settings(tmp_path, bookie_id="b1")
    async with open_store(config.metadata) as store:
        cookie_id = await begin(config, store)
        own = f"{cookie_id}/{lock_id(config)}"
        await grant(store, NAME, own, ttl_s=600, value=ELSEWHERE)
        async with running(config, store) as ready:
            assert [each.address for each in await registered(store)] == [ready.address]


async def test_a_bookie_ends_once_a_copy_of_it_serves(tmp_path: Path) -> None:
    """It was paused, or cut off, for longer than its session lived."""
    config = settings(tmp_path, bookie_id="b1", lease_ttl_s=2)
    async with open_store(config.metadata) as store:
        cookie_id = await begin(config, store)
        with pytest.RaisesGroup(
            pytest.RaisesExc(CookieRefused, match=r"at 10\.0\.0\.9:3181"), flatten_subgroups=True
        ):
            async with running(config, store):
                (lease,) = await store.leases(NAME)
                await store.end_session(StoreSession("bookie b1", lease.session, 2))
                theirs = await grant(store, NAME, f"{cookie_id}/there", ttl_s=600, value=ELSEWHERE)
                with trio.fail_after(60):
                    await trio.sleep_forever()
        assert [lease.epoch for lease in await store.leases(NAME)] == [theirs.epoch]


def test_a_lock_is_the_same_for_the_same_folders_only(tmp_path: Path) -> None:
    config = settings(tmp_path)
    for folder in (config.journal_folder, config.ledger_folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    first = lock_id(config)
    assert lock_id(config) == first
    (tmp_path / "link").symlink_to(config.journal_folder)
    assert lock_id(settings(tmp_path, journal_folder=str(tmp_path / "link"))) == first
    shutil.copytree(config.journal_folder, tmp_path / "copy")
    shutil.move(config.journal_folder, tmp_path / "aside")
    shutil.move(tmp_path / "copy", config.journal_folder)
    assert lock_id(config) != first
