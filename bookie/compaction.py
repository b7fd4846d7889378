"""Frees space: deletes or rewrites entry logs with few or no live entries.

A log without a live byte is deleted. A closed one with a smaller live share than the threshold is
rewritten, emptiest first: copy, sync, switch the index, delete (native/store.h). Minor compaction
rewrites nearly empty logs and runs often; major compaction rewrites half-empty logs and runs
rarely. Neither runs on a full disk, and major not on a disk that is filling up, because copying
needs space first. A log with damage is left alone from then on. A log that cannot be deleted is
tried again by each later run.

What is left of a log may be little, and each log costs files and memory. So either compaction
joins neighbouring logs of less than SMALL_SIZE live bytes, once there are JOINED_MIN of them.

A log that a start kept beside its copy, because that lacks a record, is joined with it: the two
have nearly the same entries.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial

import trio

from bookie.config import BookieConfig
from bookie.disk import DiskGuard, Level
from bookie.stopping import set_when_cancelled
from metadata.calls import GarbageReport, LogKept
from native.errors import Corrupt
from native.store import LogUsage, Stop, Store

_log = logging.getLogger(__name__)

_PAGE = 1000
_KEPT_MAX = 1000  # logs named in a report, which must fit a frame
_FOREVER_S = float("inf")
SMALL_SIZE = 4 << 20
JOINED_MIN = 4
_JOINED_MAX = 32


class Compactor:
    """Decides which entry logs are deleted or rewritten, and does it."""

    def __init__(self, store: Store, config: BookieConfig, disk: DiskGuard) -> None:
        self._store = store
        self._config = config
        self._disk = disk
        self._small_size = min(SMALL_SIZE, config.log_size_max // 4)
        now = trio.current_time()
        self._minor_due = now + (config.minor_interval_s or _FOREVER_S)
        self._major_due = now + (config.major_interval_s or _FOREVER_S)

    def threshold(self, major: bool | None) -> float:
        """The live share below which logs are rewritten now; 0 for none.

        Args:
            major: True for major, False for minor compaction; None for the one that is due,
                which then is not due again for its interval.
        """
        config = self._config
        if major is not None:
            return config.major_threshold if major else config.minor_threshold
        now = trio.current_time()
        if now >= self._major_due and self._disk.level is Level.OK:
            self._major_due = now + config.major_interval_s
            self._minor_due = now + (config.minor_interval_s or _FOREVER_S)
            return config.major_threshold
        if now >= self._minor_due:
            self._minor_due = now + config.minor_interval_s
            return config.minor_threshold
        return 0.0

    async def free(self, threshold: float) -> GarbageReport:
        """Delete dead logs, join small ones, and rewrite those with a live share below *threshold*.

        A log that cannot be read, copied or deleted is left; the others are still handled.
        """
        deleted = compacted = freed = copied = 0
        for log in self._closed():
            if log.live == 0:
                size = await self._delete(log.log_id)
                if size is not None:
                    freed += size
                    deleted += 1
        for find in (self._with_copies, self._small_runs, self._worth_rewriting):
            for logs in find(threshold):
                size = await self._compact(logs)
                if size is not None:
                    compacted += len(logs)
                    copied += size
                    freed += sum(log.size for log in logs) - size
        return GarbageReport(
            logs_deleted=deleted,
            logs_compacted=compacted,
            freed_size=freed,
            copied_size=copied,
            kept=self._kept(threshold)[:_KEPT_MAX],
        )

    def logs(self) -> list[LogUsage]:
        """Return all logs, by rising id."""
        logs: list[LogUsage] = []
        while page := self._store.logs(logs[-1].log_id if logs else -1, _PAGE):
            logs += page
        return logs

    def _closed(self) -> list[LogUsage]:
        return [log for log in self.logs() if not log.open]

    def _worth_rewriting(self, threshold: float) -> list[list[LogUsage]]:
        copies = self._copies()
        worth = [log for log in self._closed() if not self._reason(log, threshold, copies)]
        return [[log] for log in sorted(worth, key=_live_share)]

    def _with_copies(self, threshold: float) -> list[list[LogUsage]]:
        """Return the logs with a copy beside them, each with that; none without a *threshold*."""
        if threshold <= 0 or self._no_copy(threshold):
            return []
        groups: dict[int, list[LogUsage]] = {}
        for log in self.logs():
            if log.live:
                groups.setdefault(log.origin, []).append(log)
        return [
            group
            for group in groups.values()
            if len(group) > 1 and not any(log.open or log.damaged for log in group)
        ]

    def _small_runs(self, threshold: float) -> list[list[LogUsage]]:
        """Return neighbouring logs that become one log each; none without a *threshold*."""
        if threshold <= 0 or self._no_copy(threshold):
            return []
        runs: list[list[LogUsage]] = [[]]
        copies = self._copies()
        for log in sorted((log for log in self.logs() if log.live), key=lambda log: log.origin):
            live = log.live + sum(each.live for each in runs[-1])
            if live > self._config.log_size_max or len(runs[-1]) == _JOINED_MAX:
                runs.append([])
            is_alone = log.open or log.damaged or copies[log.origin] > 1
            if is_alone or log.live >= self._small_size:
                runs.append([])
            else:
                runs[-1].append(log)
        return [run for run in runs if len(run) >= JOINED_MIN]

    def _copies(self) -> Counter[int]:
        """Count the logs of each origin; a damaged copy may be there beside its log.

        One that could not be deleted does not count: it has nothing that its copy lacks.
        """
        return Counter(log.origin for log in self.logs() if log.live)

    def _reason(self, log: LogUsage, threshold: float, copies: Counter[int]) -> str:
        """Return why *log* is kept as it is, "" if it is worth rewriting."""
        if log.open:
            return "it is being written"
        if log.live == 0:
            return "it could not be deleted"
        if log.damaged:
            return "it is damaged"
        if copies[log.origin] > 1:
            return "a damaged copy of it, or what it is a copy of, is kept beside it"
        if _live_share(log) >= threshold:
            return f"{_live_share(log):.0%} of it is alive"
        return self._no_copy(threshold)

    def _no_copy(self, threshold: float) -> str:
        """Return why nothing may be copied now, "" if it may."""
        if self._disk.level is Level.FULL:
            return "the disk is full"
        if self._disk.level is Level.WARN and threshold > self._config.minor_threshold:
            return "the disk is filling up"
        return ""

    def _kept(self, threshold: float) -> list[LogKept]:
        copies = self._copies()
        return [
            LogKept(
                log.log_id,
                log.size,
                log.live,
                self._reason(log, threshold, copies) or "not reached",
            )
            for log in self.logs()
        ]

    async def _delete(self, log_id: int) -> int | None:
        """Return the bytes freed, or None if the log is still there."""
        try:
            return await trio.to_thread.run_sync(self._store.delete_log, log_id)
        except OSError as error:
            _log.warning("entry log %d: cannot be deleted: %s", log_id, error)
            return None

    async def _compact(self, logs: list[LogUsage]) -> int | None:
        """Return the bytes copied, or None if the logs were kept as they are."""
        # A thread cannot be cancelled, so a cancellation asks it to end.
        stop = Stop()
        ids = [log.log_id for log in logs]
        work = partial(
            self._store.compact, *ids, bytes_per_s=self._config.compaction_rate, stop=stop
        )
        names = ", ".join(map(str, ids))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_when_cancelled, stop)
            try:
                return await trio.to_thread.run_sync(work)
            except Corrupt:
                _log.warning("entry log %s: damaged; it is kept, and left alone", names)
                return None
            except OSError as error:
                # The original logs are still there, or their copy is and the next run deletes them.
                _log.warning("entry log %s: cannot be rewritten: %s", names, error)
                return None
            finally:
                nursery.cancel_scope.cancel()


def _live_share(log: LogUsage) -> float:
    return log.live / log.size if log.size else 0.0
