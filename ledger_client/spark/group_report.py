"""A streaming query's progress, committed to a group so that others see it.

    Spark commits a micro-batch ──► commit ──► places of the group ──► quire group lag

The query is no member: it commits while the group has none. A failure, such as members that
joined, is logged once, and the query goes on; half a minute later it commits again.
"""

from __future__ import annotations

import logging
import time

import trio

from ledger_client.errors import LedgerError, MetadataUnavailable
from ledger_client.groups.groups import Groups, commit_read
from ledger_client.spark.options import Offset, SourceOptions, position_of
from ledger_client.topics.context import TopicContext
from ledger_client.topics.reading.options import Start
from metadata.errors import MetadataError

COMMIT_S = 3.0
"""For one commit, which micro-batches wait for."""
RETRY_S = 30.0
_log = logging.getLogger(__name__)


class GroupReport:
    """What a query reports to its group. Each call that takes a context asks the cluster.

    Args:
        group: its name.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._reported: Offset | None = None
        """the last offset that was committed"""
        self._retry_at = 0.0
        """after a failure, when to commit again"""
        self._goes_back = False

    async def start(self, options: SourceOptions, context: TopicContext) -> Start | None:
        """Return where a new query begins: where its options say, else where the group is.

        Raises:
            NoSuchTopic, MetadataUnavailable: as Groups.committed().
        """
        if options.start is not None or options.starting_cut:
            self._goes_back = True  # it was asked for
            return options.start
        return await Groups(context).committed(self._group, options.topics) or None

    def is_due(self, offset: Offset) -> bool:
        """Return True if *offset* is new, and no commit failed a moment ago."""
        return offset != self._reported and time.monotonic() >= self._retry_at

    async def commit(self, offset: Offset, context: TopicContext) -> None:
        """Commit the places of *offset* to the group; a failure is logged."""
        groups, position = Groups(context), position_of(offset)
        try:
            with trio.move_on_after(COMMIT_S) as scope:
                await commit_read(groups, self._group, position, goes_back=self._goes_back)
            if scope.cancelled_caught:
                raise MetadataUnavailable(f"group {self._group}: no answer in {COMMIT_S:g} s")
        except (LedgerError, MetadataError) as failure:
            if not self._retry_at:
                _log.warning("the query goes on, but its progress is not committed: %s", failure)
            self._retry_at = time.monotonic() + RETRY_S
        else:
            self._reported, self._retry_at, self._goes_back = offset, 0.0, False
