"""The base classes of aio.py: calls of asyncio tasks into trio's thread.

    asyncio's thread                    trio's thread
    call ──► future    ──post──►        task, or batch of a producer
    future.set_result  ◄──call_soon──   outcomes, as many as there are by then

Trio runs in a thread of its own, as it does for blocking.py, and not as a guest of asyncio's
loop. Measured with 1000 tasks that send, both are as fast as trio itself, because one wake-up
carries many sends in each direction. But a program that blocks its loop for a second does not
delay the leases and acknowledgements of this thread, and any number of clients fit one loop.

A task that is cancelled, by a timeout for instance, cancels its call and waits until that has
ended, so that nothing goes on behind its back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import islice
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack

import trio

from ledger_client.background import OneTaker
from ledger_client.client import Client
from ledger_client.errors import ClientClosed, Gap
from ledger_client.groups.consumer import GroupConsumer, at_hand, note_unseen, raise_unseen
from ledger_client.groups.options import ConsumerSettings
from ledger_client.ledgers.entries import Entry, EntryBatch
from ledger_client.ledgers.reader import Follower
from ledger_client.message_id import MessageId
from ledger_client.opening import Held, Opening, Unopened
from ledger_client.portal import FORKED, Portal, Settle, close_when_dropped, suppress_same
from ledger_client.topics.messages import Message
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.send_queue import QueuedSend, SendFields, SendQueue
from ledger_client.topics.reading.reader import (
    RecordBatches,
    TopicReader,
    check_pull,
    give_back,
    holds_batch,
    tick_before,
)
from ledger_client.topics.times import Timestamp

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")
P = ParamSpec("P")
C = TypeVar("C", bound="CanExit")
OpenT = TypeVar("OpenT", bound="LoopOpened")


class LoopPortal(Generic[T_co]):
    """A portal for the tasks of one event loop."""

    def __init__(self, portal: Portal[T_co], loop: asyncio.AbstractEventLoop) -> None:
        self.portal = portal
        self.value = portal.value
        self._loop = loop
        self._settled: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_woken = False

    async def call(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *work* in trio's thread and return what it returns, or raise what it raises.

        Raises:
            ClientClosed: the client is closed, or was connected before this process was forked.
            RuntimeError: it was connected in another event loop.
        """
        future: asyncio.Future[R] = self.future()
        cancel = self.portal.spawn(partial(work, *args, **kwargs), self.settles(future))
        return await outlast(future, cancel)

    async def in_loop(self, function: Callable[[T], Awaitable[None] | None], what: T) -> None:
        """Call *function* in the event loop, from a task of trio, and wait for it."""

        async def run() -> None:
            result = function(what)
            if result is not None:
                await result

        token, ended = trio.lowlevel.current_trio_token(), trio.Event()

        def note(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(ended.set)

        outcome = asyncio.run_coroutine_threadsafe(run(), self._loop)
        outcome.add_done_callback(note)
        try:
            await ended.wait()
        finally:
            outcome.cancel()
        outcome.result()

    def future(self) -> asyncio.Future[R]:
        """Return a future of the running loop, which must be the one of connect()."""
        if self.portal.is_forked:
            raise ClientClosed(FORKED)
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "this client was connected in another event loop; call "
                "ledger_client.aio.connect() in the loop that uses it"
            )
        return self._loop.create_future()

    def settles(self, future: asyncio.Future[R]) -> Settle[R]:
        """Return a function for trio's thread that settles *future* in the loop's."""
        return partial(self._settle, future)

    def _settle(
        self, future: asyncio.Future[R], value: R | None, error: BaseException | None
    ) -> None:
        self._settled.append((future, value, error))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed: no task waits
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._is_woken = False
        while self._settled:
            future, value, error = self._settled.popleft()
            if future.done():
                continue  # the task was cancelled meanwhile
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    async def close(self) -> None:
        """Close the portal, and wait for that even if cancelled. Any event loop may do it."""
        loop = asyncio.get_running_loop()
        await outlast(loop.run_in_executor(None, self.portal.close), _nothing)


class LoopBlock(Generic[R]):
    """An async context manager of trio, entered and left by tasks of the event loop."""

    def __init__(self, portal: LoopPortal[Any], held: Held[R]) -> None:
        self._portal = portal
        self._held = held

    async def enter(self) -> R:
        """Enter the block. Cancelled, nothing stays open. Raises as entering does."""
        try:
            return await self._portal.call(self._held.enter)
        except BaseException as error:
            await self._stop_after(error)
            raise

    async def close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close what the block opened, as PortalBlock.close() does."""
        if self._held.is_left or self._portal.portal.is_forked:
            return
        try:
            await self._portal.call(close)
        except BaseException as interrupt:
            await self._stop_after(interrupt)
            raise

    async def leave(self, error: BaseException | None = None) -> None:
        """Leave the block, as PortalBlock.leave() does."""
        if self._held.is_left or self._portal.portal.is_forked:
            return
        try:
            if error is None:
                await self._portal.call(self._held.leave, is_block_over=True)
            elif isinstance(error, Exception):
                with suppress_same(error):
                    await self._portal.call(self._held.leave, error)
            else:
                await self._portal.call(self._held.cancel)
        except BaseException as interrupt:
            await self._stop_after(interrupt)
            raise

    async def _stop_after(self, error: BaseException) -> None:
        """Leave the block at once if the task was cancelled while it entered or left it."""
        self._held.log_unseen(error)
        forked = self._portal.portal.is_forked
        if isinstance(error, Exception) or not self._held.is_entered or forked:
            return
        await self._portal.call(self._held.cancel)


async def start_portal(
    open_resource: Callable[[], AbstractAsyncContextManager[T]],
) -> LoopPortal[T]:
    """Run trio in a thread, around a resource. Raises as opening it does."""
    loop = asyncio.get_running_loop()
    portal = Portal(open_resource, waits=False)
    try:
        await outlast(asyncio.wrap_future(portal.opened, loop=loop), portal.stop)
    except BaseException:
        await outlast(loop.run_in_executor(None, portal.close), _nothing)
        raise
    return LoopPortal(portal, loop)


def _nothing() -> None:
    """Cancel nothing: what is waited for ends by itself."""


async def outlast(future: asyncio.Future[R], cancel: Callable[[], None]) -> R:
    """Wait for a call. If cancelled, cancel the call too, and still wait until it has ended."""
    try:
        await asyncio.wait((future,))  # which does not cancel it
    except asyncio.CancelledError:
        cancel()
        while not future.done():
            with suppress(asyncio.CancelledError):  # again; the first one is raised below
                await asyncio.wait((future,))
        future.exception()  # seen: the cancellation takes its place
        raise
    return future.result()


class Looped(Generic[T]):
    """An object that lives in the thread of *portal*, with calls for asyncio tasks."""

    def __init__(self, portal: LoopPortal[object], inner: T) -> None:
        self._portal = portal
        self._inner = inner

    async def _call(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._portal.call(work, *args, **kwargs)

    def _call_sync(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        # The loop waits for the other thread, which does nothing in such calls but answer.
        return self._portal.portal.call_sync(work, *args, **kwargs)

    def _opening(
        self, kind: Callable[[LoopPortal[object], R], OpenT], opening: Opening[R]
    ) -> LoopOpening[OpenT]:
        """Return what opens something, and returns it as a *kind*."""

        async def open_it() -> OpenT:
            held = opening.hold()
            block = LoopBlock(self._portal, held)
            opened = kind(self._portal, await block.enter())
            opened._block = block
            close_when_dropped(opened, self._portal.portal, held, opening._what)
            return opened

        return LoopOpening(open_it, what=opening._what, call=opening._call)

    def _iterate(self, items: AsyncIterator[R]) -> AsyncIterator[R]:
        return LoopItems(self._portal, items, self)


class LoopOpened:
    """What is open until the end of ``async with``, or until close()."""

    _block: LoopBlock[Any]
    _inner: Any

    async def close(self) -> None:
        """Do what the method of ledger_client does. Harmless if it is closed, and in a fork."""
        await self._close()

    async def _close(self, **how: bool) -> None:
        await self._block.close(partial(self._inner.close, **how))

    async def _exit(self, error: BaseException | None) -> None:
        await self._block.leave(error)


class LoopConnection:
    """A client, which has the thread."""

    _portal: LoopPortal[Any]
    _inner: Client

    async def close(self) -> None:
        """Close what the client opened and is still open, then the connections and the thread.

        Harmless if it is closed. In a forked process it does nothing.

        Raises:
            LedgerError: as the first close() that fails, once all is closed.
        """
        await self._leave(self._inner.close)

    async def _exit(self, error: BaseException | None) -> None:
        await self._leave(self._inner.close if error is None else self._inner._opened.cancel)

    async def _leave(self, end: Callable[[], Awaitable[None]]) -> None:
        if self._portal.portal.is_forked:
            return
        try:
            with suppress(ClientClosed):
                await self._portal.call(end)
        finally:
            await self._portal.close()


class CanExit(Protocol):
    """What LoopOpening opens."""

    async def _exit(self, error: BaseException | None) -> None:
        """Close it at the end of a block, which failed with *error* unless that is None."""


class LoopOpening(Unopened, Generic[C]):
    """Something that is not open yet. Enter it with ``async with``, or ``await`` it.

    ``async with`` closes it at the end of the block. What ``await`` returns is open until its
    close(), or until the client's.
    """

    def __init__(self, open_it: Callable[[], Awaitable[C]], *, what: str, call: str) -> None:
        super().__init__(what=what, call=call)
        self._open_it = open_it
        self._entered: list[C] = []

    def __await__(self) -> Generator[Any, None, C]:
        return self._open().__await__()

    async def _open(self) -> C:
        self._use()
        return await self._open_it()

    async def __aenter__(self) -> C:
        opened = await self._open()
        self._entered.append(opened)
        return opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._entered.pop()._exit(error)


class LoopItems(Generic[R]):
    """An iterator over items that come from trio's thread one by one.

    If the task is cancelled when an item has come already, the next call returns it.

    *owner* is kept with it, because what is dropped is closed.
    """

    def __init__(self, portal: LoopPortal[Any], items: AsyncIterator[R], owner: object) -> None:
        self._portal = portal
        self._items = items
        self._owner = owner
        self._fetched: list[R] = []
        self._taker = OneTaker("iterator")

    def __aiter__(self) -> AsyncIterator[R]:
        return self

    async def __anext__(self) -> R:
        with self._taker:
            if not self._fetched:
                try:
                    await self._portal.call(self._fetch)
                except BaseException:
                    self._give_back()
                    raise
            if not self._fetched:
                raise StopAsyncIteration
            return self._fetched.pop()

    async def _fetch(self) -> None:
        with suppress(StopAsyncIteration):
            self._fetched.append(await anext(self._items))

    def _give_back(self) -> None:
        """Take rows back that have come: the reader's position must lie before them."""
        if self._fetched and isinstance(self._items, RecordBatches):
            self._fetched.clear()
            with suppress(RuntimeError):
                self._portal.portal.call_sync(self._items.give_back)


class LoopSends(Looped[Producer]):
    """Sends of any number of tasks; messages sent at the same time share batches."""

    def __init__(self, portal: LoopPortal[object], inner: Producer) -> None:
        super().__init__(portal, inner)
        self._queue = SendQueue(inner, portal.portal.post, portal.portal.nursery)

    async def _send(
        self, value: object, *, timeout_s: float | None, **fields: Unpack[SendFields]
    ) -> MessageId:
        future: asyncio.Future[MessageId] = self._portal.future()
        send = QueuedSend(value, fields, self._portal.settles(future), timeout_s)
        self._queue.put(send)
        try:
            return await future
        except asyncio.CancelledError:
            with suppress(RuntimeError):
                self._portal.portal.post(send.cancel)
            raise


class LoopConsumption(Looped[GroupConsumer]):
    """An iterator of messages: asking for one means that the last is done.

    Those that have arrived are taken here, without a call into trio's thread, which sees how many
    are left. What comes while the task is cancelled is taken back, as nobody has seen it.
    """

    _at_hand: Iterator[Message] = iter(())

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        for message in self._at_hand:
            return message
        message = await self._seen(self._inner.__anext__)
        self._at_hand = at_hand(self._inner)
        return message

    async def _poll(self, *, wait_s: float, messages_max: int) -> list[Message]:
        self._at_hand = iter(())  # the next one asks in trio's thread: these are consumed then
        return await self._seen(partial(self._inner.poll, wait_s=wait_s, messages_max=messages_max))

    async def _poll_batches(self, *, wait_s: float, messages_max: int) -> list[pa.RecordBatch]:
        self._at_hand = iter(())
        poll = partial(self._inner.poll_batches, wait_s=wait_s, messages_max=messages_max)
        return await self._seen(poll)

    async def _seen(self, ask: Callable[[], Awaitable[R]]) -> R:
        came, gaps = list[R](), list[Gap]()
        raise_unseen(self._inner)

        async def bring() -> None:
            try:
                came.append(await ask())
            except Gap as gap:
                gaps.append(gap)
                raise

        try:
            await self._portal.call(bring)
        except Gap:
            raise
        except BaseException:
            for gap in gaps:
                note_unseen(self._inner, gap)
            if came:
                with suppress(RuntimeError):
                    self._call_sync(self._inner.take_back)
            raise
        return came[0]


def in_loop(settings: ConsumerSettings, portal: LoopPortal[object]) -> ConsumerSettings:
    """Return *settings* with functions that are called in the event loop, not in trio's thread.

    They may be async, and may call the consumer. One that takes longer than the consumer may wait
    is cancelled.
    """
    settings = settings.copy()
    if (on_assigned := settings.get("on_assigned")) is not None:
        settings["on_assigned"] = partial(portal.in_loop, on_assigned)
    if (on_revoked := settings.get("on_revoked")) is not None:
        settings["on_revoked"] = partial(portal.in_loop, on_revoked)
    return settings


class LoopMessages(Looped[TopicReader]):
    """An async iterator of messages, which are brought from trio's thread by the batch.

    They are kept here already in that thread: if the task that asked for them is cancelled at
    this moment, the next call finds them.
    """

    _ready: Iterator[Message] = iter(())

    def __init__(self, portal: LoopPortal[object], inner: TopicReader) -> None:
        super().__init__(portal, inner)
        self._taker = OneTaker("reader")

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        for message in self._ready:
            return message
        with self._taker:
            while await self._portal.call(self._fetch):
                for message in self._ready:
                    return message
                # Another task took them, or had them taken back, as for position().
        raise StopAsyncIteration

    async def _next_messages(
        self, messages_max: int | None = None, *, wait_s: float | None = None
    ) -> list[Message]:
        check_pull(messages_max, wait_s)
        fetch = partial(self._fetch, messages_max, wait_s)
        with self._taker:
            while not (here := list(islice(self._ready, messages_max))):
                if not await self._portal.call(fetch):
                    return []
            return here

    async def _fetch(self, messages_max: int | None = None, wait_s: float | None = None) -> bool:
        messages = await self._inner.next_messages(messages_max, wait_s=wait_s)
        self._ready = iter(messages)
        return bool(messages)

    async def _call(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._portal.call(self._run, partial(work, *args, **kwargs))

    async def _run(self, work: Callable[[], Awaitable[R]]) -> R:
        """Do *work*, and forget what another task had fetched meanwhile if it was a seek()."""
        self._give_back()  # in one step with the work: nothing is fetched in between
        result = await work()
        if not holds_batch(self._inner):
            self._ready = iter(())
        return result

    def _call_sync(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.portal.call_sync(self._run_sync, partial(work, *args, **kwargs))

    def _run_sync(self, work: Callable[[], R]) -> R:
        self._give_back()
        return work()

    def _give_back(self) -> None:
        """Give back what was not returned yet. Takes it first: a thread may return it meanwhile."""
        ready, self._ready = self._ready, iter(())
        give_back(self._inner, len(list(ready)))

    @property
    def _tick(self) -> Timestamp:
        return tick_before(self._inner, length_hint(self._ready))


class LoopEntries(Looped[Follower]):
    """An async iterator of entries, brought from trio's thread by the batch as LoopMessages.

    *owner* is kept with it, because what is dropped is closed.
    """

    _ready: Iterator[Entry] = iter(())
    _fetched: EntryBatch | None = None

    def __init__(self, portal: LoopPortal[object], inner: Follower, owner: object) -> None:
        super().__init__(portal, inner)
        self._owner = owner
        self._taker = OneTaker("follower")

    @property
    def _position(self) -> int:
        fetched = self._fetched
        return self._inner.position if fetched is None else fetched.first_entry

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self

    async def __anext__(self) -> Entry:
        for entry in self._ready:
            return entry
        batch = await self._next_batch()
        if batch is None:
            raise StopAsyncIteration
        self._ready = iter(batch)
        return next(self._ready)

    async def _next_batch(self) -> EntryBatch | None:
        with self._taker:
            if self._fetched is None:
                await self._portal.call(self._fetch)
            batch, self._fetched = self._fetched, None
            return batch

    async def _fetch(self) -> None:
        self._fetched = await self._inner.next_batch()
