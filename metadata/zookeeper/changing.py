"""Makes changes that are planned from what was read, and planned anew while they are refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

import trio

from metadata.errors import MetadataBroken, MetadataUnavailable
from metadata.zookeeper import paths
from metadata.zookeeper.commits import Commits, Made
from metadata.zookeeper.folders import Folders
from metadata.zookeeper.patience import Patience
from metadata.zookeeper.plan import Plan
from metadata.zookeeper.sweeping import EmptyFolders
from metadata.zookeeper.znodes import Connection, Reason

Planning = Callable[[], Awaitable[Plan | None]]
"""Reads and returns a plan, or None if there is nothing to do. It raises what does not hold."""


class Changing:
    """Deadlines and changes of one store."""

    def __init__(
        self, connection: Connection, commits: Commits, patience: Patience, *, timeout_s: float
    ) -> None:
        self._connection = connection
        self._patience = patience
        self._commits = commits
        self._folders = Folders(connection)
        self.empty = EmptyFolders(connection, self._folders.drop)
        """folders that changes may have left without a node"""
        self._timeout_s = timeout_s
        self._lives: dict[str, int] = {}
        """as read last; a check of one that rose since is refused, and it is read again"""

    @contextmanager
    def deadline(self, until: float | None = None) -> Iterator[Callable[[], None]]:
        """Raise MetadataUnavailable if the block takes longer than a call may take.

        The block is given what a call of many steps calls at each answer: its time begins anew.
        """
        now = trio.current_time()
        if until is None:
            until = now + self._timeout_s
        with self._patience.scope(until) as scope:

            def answered() -> None:
                scope.deadline = max(scope.deadline, trio.current_time() + self._timeout_s)

            yield answered
        if scope.cancelled_caught:
            waited_s = trio.current_time() - now
            raise MetadataUnavailable(
                f"{self._connection.name}: ZooKeeper did not answer in {waited_s:.3g} s"
            )

    async def make(self, planning: Planning) -> int:
        """Make the plan of *planning* and return its zxid, 0 if there was nothing to do.

        Raises:
            MetadataUnavailable: with outcome_unknown if it may have been made.
            MetadataError: as *planning* raises.
        """
        until = trio.current_time() + self._timeout_s
        while True:
            with self.deadline(until):
                plan = await planning()
                if plan is None:
                    return 0
                plan.check_size()
                await self._folders.ensure_above(plan.created)
            outcome = await self._commits.make(plan, until=until)
            if isinstance(outcome, Made):
                for counter in plan.bumped:
                    self._lives.pop(counter, None)
                self.empty.note(plan.emptied)
                return outcome.zxid
            if outcome.reason is Reason.OTHER:
                raise MetadataBroken(f"{self._connection.name}: {outcome.reason.value}")
            if outcome.reason is Reason.NO_NODE:
                self._folders.forget(plan.created)
            for op in plan.guards:
                self._lives.pop(op.path, None)

    async def lives(self, nodes: Iterable[str]) -> dict[str, int]:
        """Return the versions of the nodes under /quire/lives for *nodes*: see plan.py.

        A version may have been read a while ago. That is as good: the check of it then covers
        more time.
        """
        wanted = list(dict.fromkeys(map(paths.lives_path, nodes)))
        known = {path: self._lives[path] for path in wanted if path in self._lives}
        missing = [path for path in wanted if path not in known]
        return known | await self._read_lives(missing) if missing else known

    async def _read_lives(self, counters: list[str]) -> dict[str, int]:
        found = await self._connection.stat(counters)
        if None in found:
            missing = [path for path, stat in zip(counters, found, strict=True) if stat is None]
            for block in dict.fromkeys(map(paths.lives_block, missing)):
                await self._folders.ensure(block)
            found = await self._connection.stat(counters, fresh=True)
        versions = {
            path: stat.version
            for path, stat in zip(counters, found, strict=True)
            if stat is not None
        }
        if len(versions) < len(counters):
            raise MetadataBroken(f"{self._connection.name}: a node in {paths.LIVES} is missing")
        self._lives |= versions
        return versions
