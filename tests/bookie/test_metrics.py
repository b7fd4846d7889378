from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import v2
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rig import Peer, serving, settings, until

from bookie.disk import DiskGuard
from bookie.drain import DrainState
from bookie.host import Host
from bookie.metrics import BookieMetrics
from bookie.security import Security
from bookie.server import Server
from bookie.stall import StallWatch
from bookie.upkeep import Upkeep
from metadata.groups.coordinator import Coordinator
from metadata.time.timekeeper import Timekeeper
from metadata.urls import open_store

# What the pages of an operator ask for, by the family that tells it.
FAMILIES = {
    "adds": "adds add_bytes adds_repeated add_errors add_stalls fences",
    "reads": "reads read_bytes reads_missing reads_in_limbo read_errors",
    "latency": "add_seconds journal_queue_seconds journal_sync_seconds flush_seconds read_seconds",
    "groups": "journal_groups journal_group_entries journal_written_bytes",
    "queues": "journal_queue_bytes held_bytes unfinished_bytes reads_queued parked_reads",
    "memory": "memtable_bytes memtable_entries index_cache_bytes index_directory_bytes",
    "disk": "journal_bytes log_bytes log_live_bytes log_dead_bytes index_bytes disk_free_bytes",
    "garbage": "gc_runs gc_ledgers_deleted gc_logs_deleted gc_logs_compacted gc_freed_bytes",
    "connections": "connections connections_refused connections_dropped",
    "state": "read_only stalled_seconds limbo draining disk_level ledgers logs checkpoints damages",
    "scrub": "scrubbed_bytes scrub_rounds scrub_damages gc_ledgers_moved_away",
    "repair": "leads repair_marks repairs repairs_asked repair_copied_bytes role_restarts",
    "time": "time_serves timestamps timestamp_requests time_windows clock_jumps clock_lag_seconds",
}


class Scrape:
    """A bookie whose metrics can be read."""

    def __init__(self, peer: Peer, server: Server, registry: CollectorRegistry) -> None:
        self.peer = peer
        self.server = server
        self._registry = registry

    def text(self) -> str:
        return generate_latest(self._registry).decode()

    def value(self, name: str, **labels: str) -> float:
        value = self._registry.get_sample_value(f"quire_bookie_{name}", labels)
        assert value is not None, name
        return value


@asynccontextmanager
async def scraped(folder: Path) -> AsyncIterator[Scrape]:
    config = settings(folder)
    async with open_store(config.metadata) as store, serving(config) as rig:
        disk = DiskGuard(rig.storage.engine, config)
        await disk.check()
        upkeep = Upkeep(rig.storage, store, config, disk, bookie_id="b1")
        registry = CollectorRegistry()
        drain = DrainState(store, disk, "b1", cookie_id="")
        led = (Coordinator(store), Timekeeper(store))
        host = Host("b1", "h:1", rig.storage, drain, disk.changed, registry, *led)
        stall = StallWatch(rig.storage, rig.server, disk, config)
        registry.register(BookieMetrics(rig.storage, rig.server, disk, stall, upkeep, host))
        yield Scrape(rig.connect(), rig.server, registry)


async def test_the_end_of_a_certificate_is_told_where_there_is_one(tmp_path: Path) -> None:
    name = "certificate_expires_timestamp_seconds"
    async with scraped(tmp_path) as bookie:
        assert f"quire_bookie_{name}" not in bookie.text()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        bookie.server.security = Security(context, expires_s=2e9)
        assert bookie.value(name) == 2e9


async def test_every_family_is_there_with_help_and_a_unit(tmp_path: Path) -> None:
    async with scraped(tmp_path) as bookie:
        families = {each.name: each for each in text_string_to_metric_families(bookie.text())}
    expected = {f"quire_bookie_{name}" for names in FAMILIES.values() for name in names.split()}
    assert expected <= set(families)
    assert all(family.documentation for family in families.values())
    assert all(family.samples for family in families.values())


async def test_the_counters_say_what_was_done(tmp_path: Path) -> None:
    async with scraped(tmp_path) as bookie:
        await bookie.peer.ask(v2.ADD_HELLO)
        await bookie.peer.ask(v2.ADD_HELLO)
        await bookie.peer.ask(v2.READ_HELLO)
        await bookie.peer.ask(v2.read(1, 7))
        await bookie.peer.ask(v2.add(1, 1, key=v2.OTHER_KEY))
        await until(lambda: bookie.value("journal_groups_total") >= 1)
        assert bookie.value("adds_total") == 1
        assert bookie.value("adds_repeated_total") == 1
        assert bookie.value("add_errors_total", code="102") == 1
        assert bookie.value("reads_total", source="memtable") == 1
        assert bookie.value("reads_missing_total") == 1
        assert bookie.value("connections") == 1
        assert bookie.value("add_seconds_count") >= 1
        assert bookie.value("journal_group_entries_sum") >= 1


async def test_histogram_buckets_rise_and_end_with_all(tmp_path: Path) -> None:
    async with scraped(tmp_path) as bookie:
        await bookie.peer.ask(v2.ADD_HELLO)
        await trio.lowlevel.checkpoint()
        families = {each.name: each for each in text_string_to_metric_families(bookie.text())}
    samples = families["quire_bookie_journal_sync_seconds"].samples
    buckets = [sample for sample in samples if sample.name.endswith("_bucket")]
    bounds = [float(sample.labels["le"]) for sample in buckets]
    counts = [sample.value for sample in buckets]
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (1e-6, float("inf"))
    assert counts == sorted(counts)
    assert counts[-1] == next(s.value for s in samples if s.name.endswith("_count")) > 0
