"""A bookie's life: one coroutine that owns everything else.

    offline ─► initialization ─► syncing ─► ready ─► stopping
               cookie, pages     replay,    registered, takes connections,
                                 fences     hosts roles

Its pages answer from the start, so that /ready shows the state. A failure of journal or flush ends
it with that OSError. A cancellation ends it in order: deregister, stop taking connections, flush,
write the mark.

In limbo it does not serve before it read from metadata which ledgers to fence (lost_records.py).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NoReturn

import msgspec
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from bookie.bookie_addresses import BookieAddresses
from bookie.calls import Calls
from bookie.config import BookieConfig
from bookie.cookie import check_cookie
from bookie.descriptors import fit_descriptors
from bookie.disk import DiskGuard
from bookie.drain import DrainState
from bookie.errors import BookieError, cause_of
from bookie.hints import Hints
from bookie.host import Host, Roles, keep_roles
from bookie.incarnations import Incarnations
from bookie.listeners import address_of, listen
from bookie.lock import lock_id
from bookie.lost_records import fence_forgotten, notice_amnesia
from bookie.metrics import BookieMetrics
from bookie.own_address import check_alone, doubt_of, with_port
from bookie.pages import Page, Pages
from bookie.registration import Registration
from bookie.security import Security, note_secured, read_security
from bookie.server import Server
from bookie.stall import StallWatch, raise_stall
from bookie.status import BookieState, Life, Status
from bookie.storage import Storage
from bookie.upkeep import Upkeep
from metadata.groups.coordinator import Coordinator
from metadata.records import CookieRecord
from metadata.sessions import ProcessSession
from metadata.store import MetadataStore
from metadata.time.timekeeper import Timekeeper
from metadata.urls import is_for_many_hosts, takes_bookkeepers_clients

ALONE_S = 2.0
"""Longer than its lease, a bookie waits for a dead one that had the same address."""
_log = logging.getLogger(__name__)


class Ready(msgspec.Struct, frozen=True):
    """A bookie that serves. *metrics_port* is 0 if it has no pages."""

    bookie_id: str
    address: str
    metrics_port: int


async def check_place(config: BookieConfig) -> str:
    """Let a new bookie that cannot serve where it is to end before its cluster knows it.

    Returns:
        Its address; with port 0 it will be another one.

    Raises:
        OSError: the port is taken, or the host is not local.
        ConfigError: others cannot connect to its address.
    """
    listeners = await listen(config.host, config.port)
    address = config.advertised_address or address_of(listeners[0])
    for listener in listeners:
        await listener.aclose()
    return with_port(address)


async def wait_until_alone(
    config: BookieConfig, store: MetadataStore, bookie_id: str, address: str, owner: str = ""
) -> None:
    """Wait for a dead bookie of the same address or name as long as it may be registered.

    Raises as check_alone().
    """
    limit_s = config.lease_ttl_s + ALONE_S
    await check_alone(store, bookie_id, address, owner=owner, limit_s=limit_s)


async def run_bookie(
    config: BookieConfig,
    store: MetadataStore,
    *,
    roles: Roles | None = None,
    give_up: Callable[[OSError], None] = raise_stall,
    task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Run a bookie until cancelled; started once it serves.

    Args:
        config: its settings, folders filled in. The caller holds them (bookie/lock.py).
        store: the metadata of its cluster; the caller closes it.
        roles: run for the cluster while the bookie serves; their failure does not end it.
        give_up: called when the disk hangs for 60 s (bookie/stall.py). It should end the
            process, since a thread that hangs in the kernel cannot be waited for.
        task_status: started with the address for clients.

    Raises:
        BookieError: it cannot start; nothing was changed.
        MetadataError: the store did not answer during the start.
        OSError: a port is taken, or a disk failed or hangs. The journal has every
            acknowledged entry.
    """
    life = Life()
    try:
        await _Bookie(config, store, life, roles, give_up).run(task_status)
    except BaseExceptionGroup as group:
        cause = cause_of(group)
        if cause is None:
            raise
        raise cause from group
    finally:
        life.state = BookieState.OFFLINE
    raise AssertionError("a bookie ends by cancellation or failure only")


class _Bookie:
    """The parts of one bookie while it runs."""

    def __init__(
        self,
        config: BookieConfig,
        store: MetadataStore,
        life: Life,
        roles: Roles | None,
        give_up: Callable[[OSError], None],
    ) -> None:
        self._config = fit_descriptors(config)
        self._store = store
        self._life = life
        self._roles = roles
        self._security = Security()
        self._registry = CollectorRegistry()
        self._give_up = give_up
        self._disk: DiskGuard | None = None
        self._stall: StallWatch | None = None

    async def run(self, task_status: trio.TaskStatus[Ready]) -> None:
        self._security = read_security(self._config)
        async with trio.open_nursery() as nursery:
            metrics_port = await self._open_pages(nursery)
            self._enter(BookieState.INITIALIZATION)
            cookie = await check_cookie(self._config, self._store)
            note_secured(self._config)
            await notice_amnesia(self._config, self._store, cookie.bookie_id)
            self._enter(BookieState.SYNCING)
            async with self._storage() as storage:
                await self._serve(storage, cookie, metrics_port, task_status)

    def _enter(self, state: BookieState) -> None:
        self._life.state = state
        _log.info("state: %s", state.value)

    @asynccontextmanager
    async def _storage(self) -> AsyncIterator[Storage]:
        storage = await Storage.open(self._config)
        try:
            yield storage
        finally:
            # The nursery inside is closed, so no task uses the engine any more. The pages
            # are still served, and must not read its metrics.
            self._registry = CollectorRegistry()
            with trio.CancelScope(shield=True):
                await storage.stop()

    async def _serve(
        self,
        storage: Storage,
        cookie: CookieRecord,
        metrics_port: int,
        task_status: trio.TaskStatus[Ready],
    ) -> None:
        config, store, bookie_id = self._config, self._store, cookie.bookie_id
        disk = self._disk = DiskGuard(storage.engine, config)
        storage.on_flushed = disk.look_now.set
        upkeep = Upkeep(storage, store, config, disk, bookie_id=bookie_id)
        incarnations = Incarnations(
            storage.engine,
            storage.events,
            store,
            bookie_id,
            is_shared=takes_bookkeepers_clients(config.metadata),
        )
        led = (Coordinator(store), Timekeeper(store))
        calls = Calls(store, storage, upkeep.collector, upkeep.scrubber, incarnations, *led)
        hints = Hints(store)
        server = Server(
            storage.engine,
            storage.events,
            config,
            calls.answer,
            self._security,
            incarnations,
            hints,
        )
        addresses = BookieAddresses(store)
        server.limits.is_bookie = addresses.has
        stall = StallWatch(storage, server, disk, config, give_up=self._give_up)
        self._stall = stall
        async with trio.open_nursery() as nursery:
            await nursery.start(storage.run)
            nursery.start_soon(stall.run)
            nursery.start_soon(hints.run)
            nursery.start_soon(addresses.run)
            await nursery.start(disk.run)
            if storage.limbo.is_on:
                await fence_forgotten(storage, store, bookie_id)
            owner = f"{cookie.cookie_id}/{await trio.to_thread.run_sync(lock_id, config)}"
            listeners, address = await self._listen(bookie_id, owner)
            drain = DrainState(store, disk, bookie_id, cookie_id=cookie.cookie_id)
            status = Status(
                bookie_id=bookie_id,
                address=address,
                metrics_port=metrics_port,
                life=self._life,
                storage=storage,
                server=server,
                disk=disk,
                drain=drain,
                stall=stall,
                rack=config.rack,
            )
            registry = self._registry
            host = Host(bookie_id, status.address, storage, drain, disk.changed, registry, *led)
            registry.register(BookieMetrics(storage, server, disk, stall, upkeep, host))
            calls.set_status(status)
            await nursery.start(trio.serve_listeners, server.serve, listeners)
            session = ProcessSession(
                store, nursery, owner=f"bookie {bookie_id}", ttl_s=config.lease_ttl_s
            )
            registration = Registration(
                session,
                status,
                disk,
                drain,
                owner=owner,
                check_alone=partial(check_alone, store, bookie_id, address, owner=owner),
                update_s=config.lease_ttl_s / 3,
            )
            nursery.start_soon(upkeep.run)
            try:
                await nursery.start(registration.run)
                await check_alone(store, bookie_id, address)  # two may start at the same time
            except BookieError:
                await session.aclose()
                raise
            self._enter(BookieState.READY)
            task_status.started(Ready(bookie_id, status.address, metrics_port))
            try:
                await self._host(host)
            finally:
                self._enter(BookieState.STOPPING)
                with trio.CancelScope(shield=True):
                    await session.aclose()

    async def _listen(
        self, bookie_id: str, owner: str
    ) -> tuple[Sequence[trio.SocketListener], str]:
        """Open the port, and return the bookie's address once no other one has it, or its name."""
        config = self._config
        listeners = await listen(config.host, config.port)
        try:
            address = with_port(config.advertised_address or address_of(listeners[0]))
            await wait_until_alone(config, self._store, bookie_id, address, owner)
            doubt = await doubt_of(address) if is_for_many_hosts(config.metadata) else ""
        except BaseException:
            with trio.CancelScope(shield=True):
                for listener in listeners:
                    await listener.aclose()
            raise
        if doubt:
            _log.warning("%s; set advertised_address to what leads here from all hosts", doubt)
        return listeners, address

    async def _host(self, host: Host) -> NoReturn:
        if self._roles is None:
            await trio.sleep_forever()
        await keep_roles(host, self._roles)

    # --- pages ---------------------------------------------------------------------------

    async def _open_pages(self, nursery: trio.Nursery) -> int:
        port = self._config.metrics_port
        if port == 0:
            return 0
        pages = Pages({"/metrics": self._metrics, "/health": self._health, "/ready": self._ready})
        listeners = await listen(self._config.host, max(port, 0))
        await nursery.start(trio.serve_listeners, pages.serve, listeners)
        return int(listeners[0].socket.getsockname()[1])

    def _metrics(self) -> Page:
        return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)

    def _health(self) -> Page:
        return 200, "text/plain; charset=utf-8", b"ok\n"

    def _ready(self) -> Page:
        state = self._life.state
        stalled = self._stall is not None and self._stall.is_stalled
        report = {
            "state": state.value,
            "read_only": self._disk is not None and self._disk.is_read_only,
            "stalled": stalled,
        }
        ready = state is BookieState.READY and not stalled
        return 200 if ready else 503, "application/json", msgspec.json.encode(report)
