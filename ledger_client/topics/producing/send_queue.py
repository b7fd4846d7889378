"""Sends of other threads, taken into the producer's thread many at a time.

A task for each message would cost more than the message. Here one wake-up takes over all
sends that have come meanwhile, and one task waits for each batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TypedDict

import trio

from ledger_client.errors import ClientClosed
from ledger_client.message_id import MessageId
from ledger_client.topics.producing.batch import Batch
from ledger_client.topics.producing.partition_writer import Ticket, settled_id
from ledger_client.topics.producing.producer import Bytes, Producer
from ledger_client.topics.producing.time_limit import TimeLimit
from ledger_client.topics.producing.waiting import Waiting, message_id_until

Settle = Callable[[MessageId | None, BaseException | None], None]
"""Takes a message's id or its failure, in the producer's thread."""


class SendFields(TypedDict, total=False):
    """The arguments of Producer.send() beside the value and the time limit."""

    key: Bytes | None
    event_time: int | datetime | None
    headers: Mapping[str, bytes] | None
    partition: int | None
    sequence: int | None


class QueuedSend:
    """A message on its way to the producer's thread."""

    __slots__ = ("_scope", "fields", "is_cancelled", "settle", "timeout_s", "value")

    def __init__(
        self,
        value: object,
        fields: SendFields,
        settle: Settle,
        timeout_s: float | None = None,
    ) -> None:
        self.value = value
        self.fields = fields
        self.timeout_s = timeout_s
        self.settle = settle
        self.is_cancelled = False
        self._scope: trio.CancelScope | None = None

    def cancel(self) -> None:
        """Do not send it, unless a batch has it already. Call this in the producer's thread."""
        self.is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait(self, sending: Callable[[], Awaitable[MessageId]]) -> None:
        """Settle it with what *sending* returns or raises."""
        try:
            with trio.CancelScope() as self._scope:
                if self.is_cancelled:  # before this task ran
                    self._scope.cancel()
                self.settle(await sending(), None)
                return
        except trio.Cancelled:
            self.settle(None, ClientClosed("the client was closed during the call; connect again"))
            raise
        except Exception as failure:  # noqa: BLE001  # raised to the sender
            self.settle(None, failure)
            return
        self.settle(None, InterruptedError("the call was cancelled"))


class SendQueue:
    """The sends of one producer from other threads.

    Args:
        producer: sends them.
        post: calls a function in the producer's thread soon. May raise if that has ended.
        nursery: of the producer's thread, for tasks that wait for batches.
    """

    def __init__(
        self,
        producer: Producer,
        post: Callable[[Callable[[], object]], None],
        nursery: trio.Nursery,
    ) -> None:
        self._producer = producer
        self._post = post
        self._nursery = nursery
        self._sends: deque[QueuedSend] = deque()
        self._is_woken = False
        self._waiting: dict[Batch, list[tuple[Settle, Ticket]]] = {}

    def put(self, send: QueuedSend) -> None:
        """Queue a send, from any thread. Raises as *post*."""
        self._sends.append(send)
        if self._is_woken:
            return
        self._is_woken = True  # two threads may both post: the second finds nothing
        try:
            self._post(self._take_all)
        except RuntimeError as failure:
            self._refuse_all(send, failure)
            raise

    def _refuse_all(self, mine: QueuedSend, failure: RuntimeError) -> None:
        """Fail the sends that rely on a wake-up which cannot come; *mine* raises by itself."""
        self._is_woken = False  # first: from here on, each send finds out by itself
        while self._sends:
            send = self._sends.popleft()
            if send is not mine:
                send.settle(None, failure)

    def _take_all(self) -> None:
        self._is_woken = False
        while self._sends:
            send = self._sends.popleft()
            try:
                self._take(send)
            except Exception as failure:  # noqa: BLE001  # raised to the sender
                send.settle(None, failure)

    def _take(self, send: QueuedSend) -> None:
        if send.is_cancelled:
            send.settle(None, InterruptedError("the call was cancelled"))
            return
        limit = None if send.timeout_s is None else TimeLimit.of(send.timeout_s)
        # Begun here and now: trio runs the tasks that it starts in any order.
        begun = self._producer._begin(send.value, **send.fields)
        if isinstance(begun, Waiting):
            try:
                self._nursery.start_soon(send.wait, partial(begun.message_id, limit))
            except RuntimeError:  # the nursery has ended
                begun.give_up()
                raise
            return
        if limit is not None:  # a task of its own looks at the time
            self._nursery.start_soon(send.wait, partial(message_id_until, begun, limit))
            return
        batch = begun._batch
        waiting = self._waiting.get(batch)
        if waiting is None:
            waiting = []
            self._nursery.start_soon(self._wait, batch, waiting)
            self._waiting[batch] = waiting
            batch.waiting += 1
        waiting.append((send.settle, begun))

    async def _wait(self, batch: Batch, waiting: list[tuple[Settle, Ticket]]) -> None:
        """Settle the sends of one batch."""
        try:
            await batch.done.wait()
        except trio.Cancelled:
            for settle, _ in waiting:
                settle(None, ClientClosed("the client was closed during the call; connect again"))
            raise
        finally:
            batch.waiting -= 1
            del self._waiting[batch]
        for settle, ticket in waiting:
            try:
                message_id = settled_id(batch, ticket._place)
            except Exception as failure:  # noqa: BLE001  # raised to the sender
                settle(None, failure)
            else:
                settle(message_id, None)
