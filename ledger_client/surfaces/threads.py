"""The base classes of blocking.py: calls of threads that do not run trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from operator import length_hint
from typing import Generic, ParamSpec, TypeVar, Unpack

from ledger_client.ledgers.entries import Entry
from ledger_client.ledgers.reader import Follower
from ledger_client.message_id import MessageId
from ledger_client.portal import Portal, settled
from ledger_client.topics.messages import Message
from ledger_client.topics.producing.producer import Bytes, Producer
from ledger_client.topics.producing.send_queue import QueuedSend, SendFields, SendQueue
from ledger_client.topics.reading.reader import TopicReader

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Blocking(Generic[T]):
    """An object that lives in the thread of *portal*, with calls that wait for that thread."""

    def __init__(self, portal: Portal[object], inner: T) -> None:
        self._portal = portal
        self._inner = inner

    def _call(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call(work, *args, **kwargs)

    def _call_sync(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call_sync(work, *args, **kwargs)

    def _hold(self, manager: AbstractAsyncContextManager[R]) -> AbstractContextManager[R]:
        return self._portal.hold(manager)

    def _iterate(self, items: AsyncIterator[R]) -> Iterator[R]:
        async def following() -> tuple[R] | None:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return None

        while (found := self._portal.call(following)) is not None:
            yield found[0]


class BlockingSends(Blocking[Producer]):
    """Sends of any number of threads; messages sent at the same time share batches."""

    def __init__(self, portal: Portal[object], inner: Producer) -> None:
        super().__init__(portal, inner)
        self._queue = SendQueue(inner, portal.post, portal.nursery)

    def _send(self, value: Bytes | None, **fields: Unpack[SendFields]) -> MessageId:
        self._portal.check_thread()
        result: Future[MessageId] = Future()
        send = QueuedSend(value, fields, settled(result))
        self._queue.put(send)
        try:
            return result.result()
        except BaseException:
            if not result.done():  # interrupted: it may be kept or not
                with suppress(RuntimeError):
                    self._portal.post(send.cancel)
            raise


class BlockingMessages(Blocking[TopicReader]):
    """An iterator of messages, which are brought from trio's thread by the batch."""

    _ready: Iterator[Message] = iter(())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        for message in self._ready:
            return message
        self._ready = iter(self._portal.call(self._inner.next_messages))
        return next(self._ready)

    def _call(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        self._portal.call_sync(self._give_back)
        return self._portal.call(work, *args, **kwargs)

    def _call_sync(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._portal.call_sync(self._give_back)
        return self._portal.call_sync(work, *args, **kwargs)

    def _give_back(self) -> None:
        left, self._ready = length_hint(self._ready), iter(())
        self._inner.give_back(left)


class BlockingEntries(Blocking[Follower]):
    """An iterator of entries, which are brought from trio's thread by the batch."""

    _ready: Iterator[Entry] = iter(())

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        for entry in self._ready:
            return entry
        batch = self._portal.call(self._inner.next_batch)
        if batch is None:
            raise StopIteration
        self._ready = iter(batch)
        return next(self._ready)
