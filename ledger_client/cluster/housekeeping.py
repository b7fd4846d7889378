"""The leader's part in topics: finish what clients and jobs left undone.

    retention          removes ledgers that exceed their topic's limits
    idle lanes         closes lanes without a writer: the last acknowledged messages of a
                       killed writer become readable, and all of them can expire
    deletions          completes deletions that were interrupted
    dead jobs          discards what they staged and never published
    compaction         removes ledgers of former generations
    events             publishes events that the client behind the change did not

A round costs as much as has changed since the last one and as is to be removed, not as there are
lanes: an index of lanes (lane_index.py) says which are due. It is filled by reading everything
once, and kept by the change log and a sweep now and then (lane_survey.py).

Whatever looks idle or unfinished is acted on only if it still does a round later: a writer
that lost its lease while the store was unavailable takes it again.

Ages are measured by the store's clock, which also recorded them. No host's clock counts.

Each removal is written in a transaction that checks the leader's term, so a deposed leader
removes nothing. All of it is idempotent, and others may do the same concurrently.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec
import trio

from ledger_client.cluster.expiry import Expiry
from ledger_client.cluster.lane_index import LaneKey
from ledger_client.cluster.lane_survey import FOLLOWED, LaneSurvey
from ledger_client.cluster.observer import TopicFigures
from ledger_client.errors import LedgerError, lane_text
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.context import TopicContext
from ledger_client.topics.events import waiting_namespaces
from ledger_client.topics.lanes.lane_end import close_lane
from ledger_client.topics.retention.holdings import remove_retired, retired_due_ms
from ledger_client.topics.retention.job_rows import DeadJobs
from ledger_client.topics.retention.removal import Deletion
from ledger_client.topics.topics import Topics
from metadata.errors import BadRecord, LeaseLost, MetadataError
from metadata.leadership import Term
from metadata.topics import TopicRecord

CloseLane = Callable[[Ledgers, TopicRecord, int, int], Awaitable[None]]
"""Takes over a lane of a topic (partition, lane) and closes it. Raises LedgerError."""
_log = logging.getLogger(__name__)


class HousekeepingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How often topics are looked after. Times are seconds."""

    interval_s: float = 10.0
    """Pause between two rounds, and about how long one lasts at most. Within a round each piece of
    work is followed by a rest that is as long: the bookie has other work."""
    poll_s: float = 2.0
    """Pause between two searches for unpublished events."""
    close_timeout_s: float = 30.0
    """Deadline for closing one idle lane."""


class Housekeeper:
    """Looks after topics for as long as its bookie leads."""

    def __init__(
        self,
        context: TopicContext,
        options: HousekeepingOptions,
        *,
        figures: TopicFigures | None = None,
        close_lane: CloseLane = close_lane,
    ) -> None:
        self._context = context
        self._store = context.store
        self._options = options
        self._figures = figures or TopicFigures()
        self._close_lane = close_lane
        self._unreadable: set[str] = set()
        self._forget()

    def _forget(self) -> None:
        """Forget what an earlier term knew."""
        self._survey = LaneSurvey(self._store, self._unreadable)
        self._expiry = Expiry(self._context, self._survey, self._figures)
        self._dead_jobs = DeadJobs(self._store)
        self._half_deleted: set[int] = set()
        self._idle_before: set[LaneKey] = set()
        self._names: dict[int, str] = {}
        """topics in the figures, by uid"""

    async def lead(self, term: Term) -> None:
        """Look after topics until cancelled, waiting out outages of the metadata store.

        Raises:
            LeaseLost: the term is over. It may come inside an exception group.
        """
        self._forget()
        try:
            async with trio.open_nursery() as nursery:
                for prefix in FOLLOWED:
                    nursery.start_soon(self._survey.follow, prefix)
                nursery.start_soon(
                    self._repeat, self._options.interval_s, self.look_after_all, term
                )
                nursery.start_soon(self._repeat, self._options.poll_s, self.publish_events, term)
        finally:
            self._forget()

    async def _repeat(
        self, pause_s: float, work: Callable[[Term], Awaitable[None]], term: Term
    ) -> None:
        while True:
            try:
                await work(term)
            except LeaseLost as lost:
                if lost.name == term.lease.name:
                    raise
                _log.warning("housekeeping of topics interrupted, trying again: %s", lost)
            except (MetadataError, LedgerError) as failure:
                _log.warning("housekeeping of topics interrupted, trying again: %s", failure)
            await trio.sleep(pause_s)

    async def publish_events(self, _term: Term) -> None:
        """Publish pending events. Concurrent publishers do no harm: each event appears once."""
        for namespace in await waiting_namespaces(self._store):
            try:
                await Topics(self._context).publish_events(namespace)
            except LedgerError as failure:  # other namespaces may work
                _log.warning("events of %s are not published yet: %s", namespace, failure)

    async def look_after_all(self, term: Term) -> None:
        """Do one round: look at what changed or is due. Raises MetadataError, LedgerError.

        The first round reads all lanes of all topics.
        """
        began_at = trio.current_time()
        await self._survey.check_owners()
        while await self._step(term):
            took_s = trio.current_time() - began_at
            if self._survey.is_complete and took_s >= self._options.interval_s:
                break
        await self._end_deletions(term)
        await self._close_idle()
        await self._remove_retired(term)
        await self._publish_figures()
        await self._dead_jobs.give_up(term)

    async def _step(self, term: Term) -> bool:
        """Read some of what changed and remove some of what is due; return False without either."""
        began_at = trio.current_time()
        is_news = await self._survey.step()
        is_due = await self._expiry.step(term)
        await trio.sleep(trio.current_time() - began_at)
        return is_news or is_due

    async def _end_deletions(self, term: Term) -> None:
        """Complete deletions that a round has seen already: their clients have given up."""
        found = dict(self._survey.deleting)
        for name, uid in found.items():
            if uid in self._half_deleted:
                topic = await self._survey.deleting_record(name)
                if topic is not None and topic.uid == uid:
                    await self._end_deletion(topic, term)
        self._half_deleted = set(found.values())

    async def _end_deletion(self, topic: TopicRecord, term: Term) -> None:
        catalogue = self._context.catalogue
        await Deletion(self._context.ledgers, catalogue, topic, checks=[term.check]).run()
        _log.info("completed the deletion of topic %s", topic.name)

    async def _remove_retired(self, term: Term) -> None:
        """Remove ledgers of former compactions that are due."""
        now_ms, sets = await self._store.now_ms(), self._survey.sets
        for uid in [uid for uid, due_ms in sets.items() if due_ms <= now_ms]:
            due_ms = sets.pop(uid)
            topic = self._survey.index.topics.get(uid)
            if topic is None:
                continue
            try:
                gone = await remove_retired(self._store, uid, now_ms, checks=[term.check])
                due_again_ms = await retired_due_ms(self._store, uid)
            except BadRecord as wrong:
                self._survey.pass_over(topic.name, wrong)
                continue
            except BaseException:
                sets.setdefault(uid, due_ms)
                raise
            if due_again_ms is not None:
                sets.setdefault(uid, due_again_ms)
            if gone:
                text = "removed %d ledgers of former compactions of topic %s"
                _log.info(text, gone, topic.name)

    async def _publish_figures(self) -> None:
        index = self._survey.index
        if not (index.changed and self._survey.is_complete):
            return
        while index.changed:
            uid = index.changed.pop()
            topic = index.topics.get(uid)
            if topic is not None:
                self._names[uid] = topic.name
                self._figures.note(topic.name, topic.snapshot())
            elif (name := self._names.pop(uid, None)) is not None and index.uid_of(name) is None:
                self._figures.forget(name)
            await trio.lowlevel.checkpoint()
        await self._figures.end_round()

    async def _close_idle(self) -> None:
        """Close lanes that are idle for a round already."""
        idle: set[LaneKey] = set()
        for lane in sorted(self._survey.index.idle):
            if await self._survey.is_idle(lane):
                idle.add(lane)
                topic = await self._survey.record(lane[0]) if lane in self._idle_before else None
                if topic is not None:
                    await self._close(topic, lane)
        self._idle_before = idle

    async def _close(self, topic: TopicRecord, lane: LaneKey) -> None:
        _, partition, number = lane
        where = f"{lane_text(partition, number)} of topic {topic.name}"
        try:
            with trio.fail_after(self._options.close_timeout_s):
                await self._close_lane(self._context.ledgers, topic, partition, number)
        except (LedgerError, trio.TooSlowError) as failure:
            _log.warning("cannot close idle %s: %s", where, failure)
        else:
            _log.info("closed idle %s", where)
