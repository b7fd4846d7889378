"""Connecting: to which address, and how long a first answer is waited for."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from fake_bookie import FakeBookie, Network
from memory_store import MemoryStore
from trio.testing import MockClock

import ledger_client
from ledger_client.background import Background
from ledger_client.errors import BadAddress, MetadataUnavailable
from ledger_client.topics.context import TopicContext
from ledger_client.wire.stores import BookieStore

NOBODY = "bookie://127.0.0.1:1"


async def test_the_environment_names_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CLUSTER", f"sqlite://{tmp_path}/metadata.db")
    async with ledger_client.connect() as client:
        assert await client.topics.list() == []
    monkeypatch.delenv("QUIRE_CLUSTER")
    monkeypatch.delenv("QUIRE_PROFILE", raising=False)
    with pytest.raises(BadAddress, match="set the environment variable QUIRE_CLUSTER"):
        await ledger_client.connect()


async def test_a_profile_names_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    profiles, password = tmp_path / "profiles.toml", tmp_path / "ann.password"
    profiles.write_text(
        f'[here]\ncluster = "sqlite://{tmp_path}/metadata.db"\n'
        f'[ann]\ncluster = "{NOBODY}"\nuser = "ann"\npassword_file = "ann.password"\n'
    )
    password.write_text("secret\n")
    password.chmod(0o644)
    monkeypatch.setenv("QUIRE_PROFILES", str(profiles))
    monkeypatch.setenv("QUIRE_CLUSTER", NOBODY)
    async with ledger_client.connect(profile="here") as client:
        assert await client.topics.list() == []
    async with ledger_client.connect(profile="ann"):
        assert "ann.password holds a password, and others may read it" in caplog.text
    monkeypatch.setenv("QUIRE_PROFILE", "gone")
    async with ledger_client.connect():
        pass  # QUIRE_CLUSTER comes first
    with pytest.raises(BadAddress, match="a URL and a profile are given"):
        await ledger_client.connect(NOBODY, profile="here")
    monkeypatch.delenv("QUIRE_CLUSTER")
    with pytest.raises(BadAddress, match="there is no profile 'gone'; there are: ann, here"):
        await ledger_client.connect()
    assert "secret" not in caplog.text


async def test_connecting_with_a_time_limit_notices_that_nothing_answers() -> None:
    with pytest.raises(MetadataUnavailable, match=r"no answer in 2 s.*127\.0\.0\.1:1"):
        await ledger_client.connect(NOBODY, timeout_s=2)
    async with ledger_client.connect(NOBODY):
        pass  # nothing is sent before it is needed
    with pytest.raises(ValueError, match="timeout_s takes seconds"):
        await ledger_client.connect(NOBODY, timeout_s=-1)


async def test_a_cluster_that_is_not_up_yet_is_waited_for(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    bookie = FakeBookie(MemoryStore())
    bookie.reachable = False
    network = Network(nursery, bookie)

    async def come_up() -> None:
        await trio.sleep(20)
        bookie.reachable = True

    nursery.start_soon(come_up)
    async with (
        BookieStore.open(network.addresses, open_stream=network.open_stream) as store,
        Background() as tasks,
    ):
        context = TopicContext(store, tasks)
        with pytest.raises(MetadataUnavailable, match=r"no answer in 5 s.*nobody listens"):
            await context.wait_answered(5)
        await context.wait_answered(30)
