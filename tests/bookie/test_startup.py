from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import daemons
import msgspec
import pytest
import trio
import v2
from rig import settings
from running import connected, known, page, registered, running

from bookie import daemon
from bookie.config import BookieConfig
from bookie.limbo import enter_limbo
from metadata.store import MetadataStore
from metadata.urls import open_store

# A function of the daemon, and the state in which a bookie calls it.
STEPS = {
    "check_cookie": "initialization",
    "notice_amnesia": "initialization",
    "fence_forgotten": "syncing",
}


class Held:
    """A step of the start that waits until a test lets it go on."""

    def __init__(self, step: Callable[..., Awaitable[object]]) -> None:
        self._step = step
        self.begun = trio.Event()
        self.go_on = trio.Event()

    async def __call__(self, *args: object, **kwargs: object) -> object:
        self.begun.set()
        await self.go_on.wait()
        return await self._step(*args, **kwargs)


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    first = daemons.free_ports(2)
    return settings(tmp_path, bookie_id="b1", port=first, metrics_port=first + 1)


def push_into_limbo(config: BookieConfig) -> None:
    folder = Path(config.ledger_folder)
    folder.mkdir(parents=True)
    enter_limbo(folder, ())


async def state(config: BookieConfig) -> tuple[int, str]:
    """What /ready answers."""
    status, body = await page(config.metrics_port, "/ready")
    return status, json.loads(body)["state"]


async def is_away(config: BookieConfig, store: MetadataStore) -> bool:
    """Whether clients find no way to it."""
    try:
        async with connected(f"127.0.0.1:{config.port}"):
            return False
    except OSError:
        return await registered(store) == []


@pytest.mark.parametrize("step", STEPS)
async def test_a_bookie_takes_no_connections_before_it_is_ready(
    config: BookieConfig, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """TB-48: initialization, then syncing, then ready; /ready tells it all along."""
    push_into_limbo(config)
    held = Held(getattr(daemon, step))
    monkeypatch.setattr(daemon, step, held)
    async with open_store(config.metadata) as store, trio.open_nursery() as nursery:

        async def start() -> None:
            async with running(config, store):
                assert await state(config) == (200, "ready")
                assert not await is_away(config, store)
            nursery.cancel_scope.cancel()

        nursery.start_soon(start)
        await held.begun.wait()
        assert await state(config) == (503, STEPS[step])
        assert await is_away(config, store)
        held.go_on.set()


async def test_what_the_leader_needs_to_know_is_in_the_registration(config: BookieConfig) -> None:
    """TB-35: room, load, and what the bookie may be used for."""
    async with open_store(config.metadata) as store, running(config, store) as ready:
        await known(store, 1)
        async with connected(ready.address) as peer:
            assert (await peer.ask(v2.ADD_HELLO)).code == 0
        (told,) = await registered(store)
        assert told.capacity > told.free > 0
        assert (told.load, told.ledgers_size) == (0, 0)
        assert (told.read_only, told.limbo, told.draining) == (False, False, False)


async def test_the_registration_follows_what_happens(config: BookieConfig) -> None:
    """TB-35: load and size are as of the last renewal."""
    config = msgspec.structs.replace(config, lease_ttl_s=0.3, checkpoint_interval_s=0.05)
    async with open_store(config.metadata) as store, running(config, store) as ready:
        async with connected(ready.address) as peer:
            await known(store, 1)
            assert (await peer.ask(v2.add(1, 0, bytes(100_000)))).code == 0
        with trio.fail_after(30):
            async with store.watch("bookies/") as changes:
                while (await registered(store))[0].ledgers_size < 100_000:
                    await changes.receive()
