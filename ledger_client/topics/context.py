"""One connection to a cluster for the code below the client: store, ledgers, topics, clock."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from ledger_client.background import Background
from ledger_client.errors import LedgerError, MetadataBroken, MetadataUnavailable
from ledger_client.ledgers.catalogue import translated
from ledger_client.ledgers.leader_calls import LeaderCalls
from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.options import DEFAULT_OPTIONS, Options
from ledger_client.topics.catalogue import TopicCatalogue, TopicTimes
from ledger_client.topics.lane_reports import LaneReports
from ledger_client.topics.lanes.roll_desk import RollDesk
from ledger_client.topics.timestamps import Timestamps
from ledger_client.wire.inflight import move_on_after
from ledger_client.wire.joint_changes import JointChanges
from ledger_client.wire.stores import open_store
from ledger_client.wire.streams import OpenStream, opener
from metadata.cluster_url import is_cluster_url, parse_cluster_url
from metadata.errors import MetadataError
from metadata.store import MetadataStore

T = TypeVar("T")
AGAIN_S = 0.1
"""Between attempts to reach a cluster that is waited for."""
OpenContext = Callable[[], AbstractAsyncContextManager["TopicContext"]]


class TopicContext:
    """One connection to a cluster, without the public API around it.

    Attributes:
        store: the metadata store.
        joint: makes changes of the store that wait together as one.
        ledgers: creates, opens, recovers and deletes ledgers.
        opener: opens ledgers for reading, without recovery.
        leader: asks the bookie that leads.
        timestamps: timestamps of the cluster's oracle.
        reports: reports open lanes of topics with timesync to the leader.
        rolls: passes requests for the end of a ledger to the lanes that are written here.
        catalogue: the records of topics.
        clock: estimates the store's time.
        figures: counts for metrics.
        options: deadlines and bounds.
        nursery: for tasks that live as long as the connection.
        again: connects to the cluster once more, for another thread; `None` if it cannot.
    """

    def __init__(
        self,
        store: MetadataStore,
        nursery: trio.Nursery,
        *,
        options: Options = DEFAULT_OPTIONS,
        open_stream: OpenStream = trio.open_tcp_stream,
        chance: random.Random | None = None,
    ) -> None:
        self.store = store
        self.joint = JointChanges(store)
        self.nursery = nursery
        self.options = options
        self.again: OpenContext | None = None
        self.ledgers = Ledgers(
            store, nursery, options=options, open_stream=open_stream, chance=chance
        )
        self.opener = self.ledgers.opener
        self.clock = self.ledgers.clock
        self.figures = self.ledgers.figures
        self.leader = LeaderCalls(store, self.ledgers.bookies)
        self.timestamps = Timestamps(
            self.leader, nursery, self.figures, timeout_s=options.metadata_timeout_s
        )
        self.reports = LaneReports(self.leader, self._fresh, nursery)
        self.rolls = RollDesk(store, nursery)
        self.catalogue = TopicCatalogue(
            store,
            timeout_s=options.metadata_timeout_s,
            clock=self.clock,
            times=TopicTimes(self.ledgers.session, self._fresh),
        )

    async def wait_answered(self, timeout_s: float) -> None:
        """Return once the metadata store answers, also if it cannot be reached yet.

        Raises:
            MetadataUnavailable: it did not within *timeout_s*; the message says why.
            AccessDenied: a bookie refuses the login.
        """
        reason = ""
        with move_on_after(timeout_s):
            while True:
                try:
                    with translated(math.inf):
                        await self.store.now_ms()
                        return
                except MetadataUnavailable as failure:
                    reason = f": {failure}"
                await trio.sleep(AGAIN_S)
        raise MetadataUnavailable(f"the cluster gave no answer in {timeout_s:g} s{reason}")

    async def _fresh(self) -> int:
        return (await self.timestamps.allocate()).first


@asynccontextmanager
async def open_context(
    url: str,
    *,
    options: Options = DEFAULT_OPTIONS,
    open_stream: OpenStream = trio.open_tcp_stream,
) -> AsyncIterator[TopicContext]:
    """Connect to a cluster; ledger_client.connect() documents the arguments and errors."""
    async with AsyncExitStack() as stack:
        try:
            reach = _opener(url, open_stream)
            store = await stack.enter_async_context(open_store(url))
        except LedgerError:
            raise
        except MetadataError as wrong:
            raise MetadataBroken(f"metadata: {wrong}") from wrong
        nursery = await stack.enter_async_context(Background())
        context = TopicContext(store, nursery, options=options, open_stream=reach)
        if open_stream is trio.open_tcp_stream:
            context.again = partial(open_context, url, options=options)
        try:
            yield context
        finally:
            await context.ledgers.session.aclose()


def _opener(url: str, open_stream: OpenStream) -> OpenStream:
    """Return a dialler of bookies. A client opened by SQLite URL connects unauthenticated."""
    if not is_cluster_url(url):
        return open_stream
    return opener(parse_cluster_url(url).access, open_stream)


def ask(url: str, question: Callable[[TopicContext], Awaitable[T]]) -> T:
    """Connect, and return the result of *question*; raise its first LedgerError ungrouped.

    For code without an event loop of its own.
    """
    return trio.run(partial(_ask, url, question))


async def _ask(url: str, question: Callable[[TopicContext], Awaitable[T]]) -> T:
    failure: LedgerError
    try:
        async with open_context(url) as context:
            return await question(context)
    except* LedgerError as group:
        failure = _first(group)
    raise failure


def _first(error: BaseException) -> LedgerError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LedgerError)
    return error
