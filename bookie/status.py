"""A bookie's state, disk and load, for the registration and BookieInfo."""

from __future__ import annotations

import enum
import os
from importlib import metadata as distributions

import trio

from bookie.disk import DiskGuard
from bookie.drain import DrainState
from bookie.server import Server
from bookie.stall import StallWatch
from bookie.storage import Storage
from metadata.calls import BookieStatus
from metadata.records import BookieRecord


class BookieState(enum.Enum):
    """State of a bookie, from start to stop."""

    OFFLINE = "offline"
    INITIALIZATION = "initialization"  # checks itself, takes no connections
    SYNCING = "syncing"  # replays its journal
    READY = "ready"
    STOPPING = "stopping"


class Life:
    """Holds the state of a bookie from the start of its process."""

    def __init__(self) -> None:
        self.state = BookieState.OFFLINE
        self.since = trio.current_time()


class Status:
    """A bookie that serves, as seen from outside.

    Attributes:
        bookie_id: its name in ledger records.
        address: host:port for clients.
        metrics_port: 0 when no metrics are served.
    """

    def __init__(
        self,
        *,
        bookie_id: str,
        address: str,
        metrics_port: int,
        life: Life,
        storage: Storage,
        server: Server,
        disk: DiskGuard,
        drain: DrainState,
        stall: StallWatch,
        rack: str = "",
    ) -> None:
        self.bookie_id = bookie_id
        self.address = address
        self.metrics_port = metrics_port
        self._rack = rack
        self._life = life
        self._storage = storage
        self._server = server
        self._disk = disk
        self._drain = drain
        self._stall = stall
        self._version = installed_version()
        self._load = 0.0
        self._sampled = (life.since, 0)

    def sample_load(self) -> None:
        """Take the bytes added a second since the last sample as the load."""
        at, added = trio.current_time(), self._storage.engine.stats().add_bytes
        then, before = self._sampled
        if at > then:
            self._load = (added - before) / (at - then)
        self._sampled = (at, added)

    def record(self) -> BookieRecord:
        """Return the record for the registration."""
        return BookieRecord(
            bookie_id=self.bookie_id,
            address=self.address,
            capacity=self._disk.capacity,
            free=self._disk.free,
            load=round(self._load, 1),
            read_only=self._disk.is_read_only or self._stall.is_stalled,
            version=self._version,
            metrics_port=self.metrics_port,
            limbo=self._storage.limbo.is_on,
            draining=self._drain.is_on,
            stalled=self._stall.is_stalled,
            ledgers_size=self._storage.engine.store.stats().live_bytes,
            rack=self._rack,
        )

    def report(self) -> BookieStatus:
        """Return the reply to BookieInfo, with the present state and disk space."""
        stats = self._storage.engine.stats()
        return BookieStatus(
            bookie_id=self.bookie_id,
            address=self.address,
            state=self._life.state.value,
            version=self._version,
            read_only=self._disk.is_read_only,
            capacity=self._disk.capacity,
            free=self._disk.free,
            load=round(self._load, 1),
            ledgers=stats.ledgers,
            connections=self._server.connections,
            uptime_s=round(trio.current_time() - self._life.since, 3),
            metrics_port=self.metrics_port,
            process_id=os.getpid(),
            limbo=self._storage.limbo.is_on,
            draining=self._drain.is_on,
            stalled=self._stall.is_stalled,
            ledgers_size=self._storage.engine.store.stats().live_bytes,
        )


def installed_version() -> str:
    """Return the version of the distribution, "" if it is not installed."""
    try:
        return distributions.version("quire")
    except distributions.PackageNotFoundError:
        return ""
