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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import trio

from ledger_client.background import OneTaker
from ledger_client.groups.consumer import GroupConsumer, at_hand
from ledger_client.groups.options import ConsumerSettings
from ledger_client.ledgers.entries import Entry, EntryBatch
from ledger_client.ledgers.reader import Follower
from ledger_client.message_id import MessageId
from ledger_client.portal import FORKED, Held, Portal, Settle, suppress_same
from ledger_client.topics.messages import Message
from ledger_client.topics.producing.producer import Bytes, Producer
from ledger_client.topics.producing.send_queue import QueuedSend, SendFields, SendQueue
from ledger_client.topics.reading.reader import RecordBatches, TopicReader, give_back

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")
P = ParamSpec("P")


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
            RuntimeError: the client is closed, was connected in another event loop, or before
                this process was forked.
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
            raise RuntimeError(FORKED)
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

    @asynccontextmanager
    async def hold(self, manager: AbstractAsyncContextManager[R]) -> AsyncIterator[R]:
        """Enter *manager* for the block, as Portal.hold() does."""
        held = Held(manager)
        try:
            value = await self.call(self.portal.start, held)
            try:
                yield value
            except Exception as error:
                trace = error.__traceback__
                if not self.portal.is_forked:
                    with suppress_same(error):
                        await self.call(held.leave, error)
                error.__traceback__ = trace
                raise
            if not self.portal.is_forked:
                await self.call(held.leave)
        except BaseException as error:
            # Also if the task was cancelled while the block was entered or left.
            if not isinstance(error, Exception) and held.is_entered and not self.portal.is_forked:
                await self.call(held.cancel)
            raise


@asynccontextmanager
async def open_portal(
    open_resource: Callable[[], AbstractAsyncContextManager[T]],
) -> AsyncIterator[LoopPortal[T]]:
    """Run trio in a thread for the block, around a resource. Raises as opening it does."""
    loop = asyncio.get_running_loop()
    opening = loop.run_in_executor(None, Portal, open_resource)
    try:
        portal = await outlast(opening, lambda: None)
    except asyncio.CancelledError:
        if not opening.exception():
            await loop.run_in_executor(None, opening.result().close)
        raise
    try:
        yield LoopPortal(portal, loop)
    finally:
        await outlast(loop.run_in_executor(None, portal.close), lambda: None)


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

    def _hold(self, manager: AbstractAsyncContextManager[R]) -> AbstractAsyncContextManager[R]:
        return self._portal.hold(manager)

    def _iterate(self, items: AsyncIterator[R]) -> AsyncIterator[R]:
        return LoopItems(self._portal, items)


class LoopItems(Generic[R]):
    """An iterator over items that come from trio's thread one by one.

    If the task is cancelled when an item has come already, the next call returns it.
    """

    def __init__(self, portal: LoopPortal[Any], items: AsyncIterator[R]) -> None:
        self._portal = portal
        self._items = items
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

    async def _send(self, value: Bytes | None, **fields: Unpack[SendFields]) -> MessageId:
        future: asyncio.Future[MessageId] = self._portal.future()
        send = QueuedSend(value, fields, self._portal.settles(future))
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
        return await self._seen(partial(self._inner.poll, wait_s=wait_s, messages_max=messages_max))

    async def _poll_batches(self, *, wait_s: float, messages_max: int) -> list[pa.RecordBatch]:
        poll = partial(self._inner.poll_batches, wait_s=wait_s, messages_max=messages_max)
        return await self._seen(poll)

    async def _seen(self, ask: Callable[[], Awaitable[R]]) -> R:
        came: list[R] = []

        async def bring() -> None:
            came.append(await ask())

        try:
            await self._portal.call(bring)
        except BaseException:
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

    async def _next_messages(self) -> list[Message]:
        with self._taker:
            self._portal.portal.call_sync(self._give_back)
            while await self._portal.call(self._fetch):
                fetched, self._ready = list(self._ready), iter(())
                if fetched:
                    return fetched
        return []

    async def _fetch(self) -> bool:
        messages = await self._inner.next_messages()
        self._ready = iter(messages)
        return bool(messages)

    async def _call(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        self._portal.portal.call_sync(self._give_back)
        return await self._portal.call(work, *args, **kwargs)

    def _call_sync(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._portal.portal.call_sync(self._give_back)
        return self._portal.portal.call_sync(work, *args, **kwargs)

    def _give_back(self) -> None:
        left, self._ready = length_hint(self._ready), iter(())
        give_back(self._inner, left)


class LoopEntries(Looped[Follower]):
    """An async iterator of entries, brought from trio's thread by the batch as LoopMessages."""

    _ready: Iterator[Entry] = iter(())
    _fetched: EntryBatch | None = None

    def __init__(self, portal: LoopPortal[object], inner: Follower) -> None:
        super().__init__(portal, inner)
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
