from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from leases import grant
from memory_store import MemoryStore
from rig import settings
from running import registered, running

from bookie import daemon
from bookie.config import ConfigError, load_config
from bookie.own_address import check_address, check_alone, doubt_of, with_port
from metadata.records import BookieRecord, bookie_lease, encode_record
from metadata.sqlite import SqliteStore
from metadata.urls import open_store

HERE = "10.0.0.1:3181"


def record(bookie_id: str, address: str = HERE) -> bytes:
    return encode_record(BookieRecord(bookie_id, address, 1, 1))


async def test_an_address_of_its_own_is_taken_at_once(autojump_clock: trio.abc.Clock) -> None:
    store = MemoryStore()
    await grant(store, bookie_lease("b1"), "b1", ttl_s=10, value=record("b1"))
    await grant(store, bookie_lease("b2"), "b2", ttl_s=10, value=record("b2", "10.0.0.2:3181"))
    began = trio.current_time()
    await check_alone(store, "b1", HERE, limit_s=60)
    assert trio.current_time() == began


async def test_an_address_of_another_bookie_is_refused(autojump_clock: trio.abc.Clock) -> None:
    store = MemoryStore()
    await grant(store, bookie_lease("b1"), "b1", ttl_s=100, value=record("b1"))
    with pytest.raises(ConfigError, match=r"the bookie b1 is registered at 10\.0\.0\.1:3181 too"):
        await check_alone(store, "b2", HERE, limit_s=60)


async def test_a_dead_bookie_gives_its_address_up(autojump_clock: trio.abc.Clock) -> None:
    store = MemoryStore()
    await grant(store, bookie_lease("b1"), "b1", ttl_s=10, value=record("b1"))
    began = trio.current_time()
    await check_alone(store, "b2", HERE, limit_s=12)
    assert 9.9 < trio.current_time() - began < 11


@pytest.mark.parametrize("address", ["0.0.0.0:3181", "[::]:3181"])
def test_an_address_that_every_host_has_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="others cannot connect to"):
        check_address(address)


@pytest.mark.parametrize("address", [HERE, "host-1:3181", "127.0.0.1:3181", "[::1]:3181"])
def test_other_addresses_are_taken(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize("text", ["10.0.0.1", "host-1", "[::1]"])
def test_an_advertised_address_is_registered_with_its_port(text: str) -> None:
    """Two bookies that state it differently have the same one."""
    assert with_port(text) == f"{text}:3181"
    assert with_port(f"{text}:9") == f"{text}:9"


@pytest.mark.parametrize(
    ("address", "doubt"),
    [
        ("127.0.0.1:3181", "leads each host to itself"),
        ("localhost:3181", "leads each host to itself"),
        ("[::1]:3181", "leads each host to itself"),
        ("no-such-host.invalid:3181", "no-such-host.invalid is not known here"),
        ("10.0.0.1:3181", ""),
    ],
)
async def test_an_address_that_others_may_not_reach_is_doubted(
    monkeypatch: pytest.MonkeyPatch, address: str, doubt: str
) -> None:
    async def connect(_host: str, _port: int) -> trio.abc.Stream:
        return trio.testing.memory_stream_pair()[0]

    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    assert doubt in await doubt_of(address)
    assert bool(doubt) == bool(await doubt_of(address))


@pytest.mark.parametrize(
    ("failure", "doubt"),
    [
        (OSError(113, "No route to host"), "to 10.0.0.1:3181: No route to host"),
        (OSError("all attempts to connect failed"), "3181: all attempts to connect failed"),
        (None, "no connection from here to 10.0.0.1:3181 within 2 s"),
    ],
)
async def test_an_address_that_does_not_lead_here_is_doubted(
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.abc.Clock,
    failure: OSError | None,
    doubt: str,
) -> None:
    """A bookie there looks as if it could be written to, and each new ledger waits for it."""

    async def connect(_host: str, _port: int) -> trio.abc.Stream:
        if failure is not None:
            raise failure
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    assert doubt in await doubt_of("10.0.0.1:3181")


async def test_a_bookie_of_many_hosts_warns_of_such_an_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tmp_path)
    async with open_store(config.metadata) as store:
        async with running(config, store):
            pass
        assert "advertised_address" not in caplog.text
        monkeypatch.setattr(daemon, "is_for_many_hosts", lambda _url: True)
        async with running(config, store):
            pass
    assert "leads each host to itself; set advertised_address" in caplog.text


async def test_a_bookie_does_not_serve_under_another_ones_address(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    values = {"host": "127.0.0.1", "port": "0", "lease_ttl_s": "0.5", "disk_reserve": "0"}
    (tmp_path / "b2").mkdir()
    config = load_config(None, {**values, "data_folder": str(tmp_path / "b2")})
    config = msgspec.structs.replace(config, advertised_address=HERE)
    await grant(store, bookie_lease("b1"), "b1", ttl_s=100, value=record("b1"))
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError), flatten_subgroups=True):
        async with running(config, store):
            pass
    assert [each.bookie_id for each in await registered(store)] == ["b1"]
    await store.aclose()
