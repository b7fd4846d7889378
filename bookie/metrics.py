"""Prometheus metrics of a bookie, collected at each scrape.

The C engine counts; a scrape reads the counters of engine and storage and gives them
names. Sizes are in bytes, times in seconds. Metrics that end in _total only rise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector as PrometheusCollector

from bookie.disk import DiskGuard
from bookie.garbage import Collector
from bookie.host import Host, RoleFigures
from bookie.server import Server
from bookie.stall import StallWatch
from bookie.storage import Storage
from bookie.upkeep import Upkeep
from metadata.time.timekeeper import TimeFigures
from native.engine import EngineStats, Histogram
from native.store import StoreStats

_PREFIX = "quire_bookie_"
# EngineStats.add_errors has one slot for each of these codes; the last one counts all others.
_ERROR_CODES = ("100", "101", "102", "103", "104", "105", "106", "other")
_MICROSECOND = 1e-6


class BookieMetrics(PrometheusCollector):
    """The metrics of one bookie, for a registry of prometheus-client."""

    def __init__(
        self,
        storage: Storage,
        server: Server,
        disk: DiskGuard,
        stall: StallWatch,
        upkeep: Upkeep,
        host: Host,
    ) -> None:
        self._storage = storage
        self._server = server
        self._disk = disk
        self._stall = stall
        self._upkeep = upkeep
        self._host = host

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families; the engine's counters come from one snapshot."""
        engine = self._storage.engine
        stats = engine.stats()
        yield from _adds(stats)
        yield from _reads(stats)
        yield from _journal(stats)
        yield from _memory(stats)
        yield from _logs(engine.store.stats())
        yield from self._connections(stats)
        yield from self._state()
        yield from _garbage(self._upkeep.collector)
        yield from _scrub(self._upkeep)
        yield from _roles(self._host.figures)
        yield from _time(self._host.timekeeper.figures)

    def _connections(self, stats: EngineStats) -> Iterator[Metric]:
        server = self._server
        yield _gauge("connections", "Connections served", stats.connections)
        yield _counter("connections_refused", "Connections over the limit", server.refused)
        yield _counter(
            "connections_replaced", "Idle connections closed for others", server.limits.replaced
        )
        yield _counter("connections_dropped", "Connections ended by a fault", server.dropped)
        yield _counter("connections_faults", "Connections ended by a bug here", server.faults)
        yield _gauge("held_bytes", "Bytes held for peers, all connections", server.budget.held)
        yield _gauge("unfinished_bytes", "Bytes of unfinished frames", stats.partial_bytes)
        yield _gauge("parked_reads", "Reads parked until data comes", server.parked_reads.parked)
        if server.security.context is not None:
            ends_s = server.security.expires_s
            yield _gauge("certificate_expires_timestamp_seconds", "Its certificate's end", ends_s)
        workers = server.read_workers
        waiting = workers.statistics().tasks_waiting
        yield _gauge("reads_queued", "Connections that wait for a read worker", waiting)
        yield _gauge("read_workers_busy", "Threads reading the disk", workers.borrowed_tokens)

    def _state(self) -> Iterator[Metric]:
        disk, host = self._disk, self._host
        yield _gauge("read_only", "1 while adds are refused", int(disk.is_read_only))
        stalled_s = self._stall.lasted_s
        yield _gauge("stalled_seconds", "Without progress of journal or flush", stalled_s)
        yield _gauge("limbo", "1 while missing entries are not denied", int(host.limbo))
        yield _gauge("draining", "1 while it is being decommissioned", int(host.draining))
        yield _gauge("disk_free_bytes", "Free bytes of the fuller disk", disk.free)
        yield _gauge("disk_level", "0 ok, 1 warn, 2 full", disk.level)
        yield _counter("checkpoints", "Marks written", self._storage.checkpoints)


def _garbage(garbage: Collector) -> Iterator[Metric]:
    total = garbage.total
    yield _labelled("gc_runs", "Garbage collections", "result", garbage.runs)
    yield _counter("gc_ledgers_deleted", "Ledgers deleted", total.ledgers_deleted)
    moved = total.ledgers_moved_away
    yield _counter("gc_ledgers_moved_away", "Ledgers deleted that have all copies elsewhere", moved)
    yield _counter("gc_logs_deleted", "Entry logs deleted when empty", total.logs_deleted)
    yield _counter("gc_logs_compacted", "Entry logs rewritten", total.logs_compacted)
    yield _counter("gc_freed_bytes", "Bytes freed", total.freed_size)
    yield _counter("gc_copied_bytes", "Bytes copied by compaction", total.copied_size)


def _scrub(upkeep: Upkeep) -> Iterator[Metric]:
    scrubber = upkeep.scrubber
    yield _counter("scrubbed_bytes", "Bytes of records checked", scrubber.checked_size)
    yield _counter("scrub_rounds", "Times that all closed logs were checked", scrubber.rounds)
    yield _counter("scrub_damages", "Damaged records that scrubbing met", scrubber.damaged)
    yield _counter("repairs_asked", "Damaged entries named to repair", upkeep.watch.marked)


def _roles(figures: RoleFigures) -> Iterator[Metric]:
    yield _gauge("leads", "1 while this bookie leads", int(figures.leads))
    yield _gauge("repair_marks", "Ledgers that want repair, as last seen", figures.marks)
    results = {"ok": figures.repaired, "failed": figures.failed}
    yield _labelled("repairs", "Repairs by this bookie", "result", results)
    yield _counter("repair_copied_bytes", "Payload bytes copied by repair", figures.copied_size)
    yield _counter("role_restarts", "Times that the roles were started again", figures.restarts)


def _time(figures: TimeFigures) -> Iterator[Metric]:
    yield _gauge("time_serves", "1 while it hands out timestamps", int(figures.serves))
    yield _counter("timestamps", "Timestamps handed out", figures.allotted)
    yield _counter("timestamp_requests", "Requests that got timestamps", figures.requests)
    yield _counter("time_windows", "Windows of timestamps stored", figures.saves)
    yield _counter("clock_jumps", "Times that the clock was over 150 ms ahead", figures.jumps)
    lag_s = figures.lag_ms / 1000 if figures.serves else 0.0
    yield _gauge("clock_lag_seconds", "Clock ahead of timestamps; below 0: behind", lag_s)


def _adds(stats: EngineStats) -> Iterator[Metric]:
    yield _counter("adds", "Entries acknowledged", stats.adds)
    yield _counter("add_bytes", "Bytes of entries acknowledged", stats.add_bytes)
    yield _counter("adds_repeated", "Entries that were there already", stats.adds_repeated)
    errors = dict(zip(_ERROR_CODES, stats.add_errors, strict=True))
    yield _labelled("add_errors", "Adds refused, by code", "code", errors)
    yield _counter("fences", "Ledgers fenced", stats.fences)
    yield _counter("add_stalls", "Times that adds met a full memtable", stats.fulls)
    yield _seconds("add_seconds", "From received to synced", stats.add)


def _reads(stats: EngineStats) -> Iterator[Metric]:
    sources = {"memtable": stats.reads_memtable, "log": stats.reads_log}
    yield _labelled("reads", "Entries read, by source", "source", sources)
    yield _counter("read_bytes", "Bytes of entries read", stats.read_bytes)
    yield _counter("reads_missing", "Reads of what is not here", stats.reads_missing)
    limbo = "Reads of what is not here, answered with I/O error as it may be lost"
    yield _counter("reads_in_limbo", limbo, stats.reads_in_limbo)
    errors = "Reads answered with I/O error, apart from those in limbo"
    yield _counter("read_errors", errors, stats.read_errors)
    family = HistogramMetricFamily(
        _PREFIX + "read_seconds", "Time of a read, by source", labels=["source"]
    )
    for source, histogram in (("memtable", stats.read_memtable), ("log", stats.read_log)):
        family.add_metric(
            [source], buckets=_buckets(histogram, _MICROSECOND), sum_value=histogram.sum_ns / 1e9
        )
    yield family


def _journal(stats: EngineStats) -> Iterator[Metric]:
    yield _seconds("journal_queue_seconds", "From gathered to write begun", stats.queue)
    yield _seconds("journal_sync_seconds", "Write and sync of a group", stats.sync)
    yield _histogram(
        "journal_group_entries", "Entries synced together", stats.group_size, 1, stats.group_entries
    )
    yield _counter("journal_groups", "Groups synced", stats.groups)
    yield _counter("journal_written_bytes", "Bytes of groups, with padding", stats.group_bytes)
    yield _gauge("journal_queue_bytes", "Bytes gathered and not yet synced", stats.unsynced_bytes)
    yield _gauge("journal_bytes", "Bytes of all journal files", stats.journal_bytes)
    yield _gauge("journal_file", "Id of the file being written", stats.journal_id)
    yield _gauge("journal_offset_bytes", "Where in it the next group goes", stats.journal_offset)


def _memory(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("memtable_bytes", "Bytes used in both halves", stats.memtable_bytes)
    yield _gauge("memtable_entries", "Entries in both halves", stats.memtable_entries)
    yield _gauge("ledgers", "Ledgers known", stats.ledgers)
    yield _seconds("flush_seconds", "Flush of a half to entry log and index", stats.flush)


def _logs(stats: StoreStats) -> Iterator[Metric]:
    yield _gauge("logs", "Entry logs", stats.logs)
    yield _gauge("log_bytes", "Bytes of all entry logs", stats.log_bytes)
    yield _gauge("log_live_bytes", "Bytes of entries still wanted", stats.live_bytes)
    dead = max(0, stats.log_bytes - stats.live_bytes)
    yield _gauge("log_dead_bytes", "Bytes that compaction could free", dead)
    yield _gauge("index_bytes", "Bytes of all index files", stats.index_bytes)
    yield _gauge("index_cache_bytes", "Memory of the index cache", stats.index_cache_bytes)
    yield _gauge("index_directory_bytes", "Memory of the extents", stats.directory_bytes)
    yield _gauge("index_extents", "Extents in the index", stats.extents)
    yield _counter("index_cache_hits", "Index pages found in memory", stats.index_cache_hits)
    yield _counter("index_reads", "Index pages read from disk", stats.index_reads)
    yield _counter("log_reads", "Reads of entry logs", stats.log_reads)
    yield _counter("flushes", "Flushes to entry logs", stats.flushes)
    yield _counter("flushed_entries", "Entries flushed", stats.flushed_entries)
    yield _counter("flushed_bytes", "Bytes flushed", stats.flushed_bytes)
    yield _counter("damages", "Damaged places met on disk", stats.damaged)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _seconds(name: str, text: str, histogram: Histogram) -> Metric:
    return _histogram(name, text, histogram, _MICROSECOND, histogram.sum_ns / 1e9)


def _histogram(name: str, text: str, histogram: Histogram, unit: float, sum_value: float) -> Metric:
    return HistogramMetricFamily(
        _PREFIX + name, text, buckets=_buckets(histogram, unit), sum_value=sum_value
    )


def _buckets(histogram: Histogram, unit: float) -> list[tuple[str, float]]:
    """Return cumulative buckets for Prometheus; the engine's last bucket has no upper bound."""
    buckets = []
    count = 0
    for power, here in enumerate(histogram.buckets):
        count += here
        last = power == len(histogram.buckets) - 1
        buckets.append(("+Inf" if last else repr(2**power * unit), float(count)))
    return buckets
