"""A message whose send has begun, and which cannot be accepted yet."""

from __future__ import annotations

from collections.abc import Callable

from ledger_client.errors import LedgerError, NotSent
from ledger_client.message_id import MessageId
from ledger_client.topics.producing.partition_writer import (
    PartitionWriter,
    Ticket,
    message_id,
    settled_id,
)
from ledger_client.topics.producing.room import Room, wait_for_room
from ledger_client.topics.producing.time_limit import TimeLimit


class Waiting:
    """A message in the line of its partition, from the moment at which its send began.

    Args:
        topic: its name.
        room: what the message takes room of.
        size: how many bytes.
        writer: its partition.
        find: returns its partition, which may be another one once partitions were added. Raises
            LedgerError if the producer accepts nothing any more.
        put: accepts it in a partition that is ready, or gives its room back.
    """

    def __init__(
        self,
        topic: str,
        room: Room,
        size: int,
        writer: PartitionWriter,
        *,
        find: Callable[[], PartitionWriter],
        put: Callable[[PartitionWriter], Ticket],
    ) -> None:
        self._topic = topic
        self._room = room
        self._size = size
        self._writer = writer
        self._find = find
        self._put = put
        self._turn = writer.line.join(self._accept)

    async def message_id(self, limit: TimeLimit | None) -> MessageId:
        """Wait until the message is accepted and durable; return its id. To be called once.

        Raises:
            NotSent: it was not accepted until *limit*, or was taken back.
            SendUnknown: its outcome was not known until then.
            LedgerError: as Producer.send().
        """
        if limit is None:
            return await (await self._ticket()).message_id()
        with limit.scope():
            await self._ticket()
        ticket = self._turn.accepted  # maybe just when the time was over
        if ticket is None:
            reason = self._writer.hindrance()
            raise NotSent(self._topic, timeout_s=limit.timeout_s, reason=reason)
        return await message_id_until(ticket, limit)

    def give_up(self) -> None:
        """Leave the line, unless the message is accepted already."""
        self._writer.line.leave(self._turn)

    def _accept(self) -> Ticket | None:
        """Accept it at once if that is possible. For those who are before it in the line."""
        writer = self._find()
        is_ready = writer is self._writer and writer.machine.is_ready
        return self._put(writer) if is_ready and self._room.take(self._size) else None

    async def _ticket(self) -> Ticket:
        turn = self._turn
        try:
            await turn.news.wait()
            if turn.failure is not None:
                raise turn.failure.with_traceback(None)
            if turn.accepted is None:
                turn.accepted = self._put(await self._wait())
            return turn.accepted
        finally:
            self._writer.line.leave(turn)
            del turn.accept  # or each would be garbage in a circle, which costs a third

    async def _wait(self) -> PartitionWriter:
        """Wait for room, and then for the lane, as the first one in the line."""
        if not self._room.take(self._size):
            await wait_for_room(self._room, self._size)
        try:
            while not (writer := self._find()).machine.is_ready:
                await writer.wait_ready()
        except BaseException as failure:
            self._room.release(self._size)
            if isinstance(failure, LedgerError):
                self._writer.line.fail(failure)
            raise
        return writer


async def message_id_until(ticket: Ticket, limit: TimeLimit | None) -> MessageId:
    """Return the id as Ticket.message_id(), or take the message back once the time is over.

    Raises:
        NotSent: it was taken back.
        SendUnknown: it is under way, or must stay.
    """
    batch, place = ticket._batch, ticket._place
    if limit is None:
        return await message_id(batch, place)
    with limit.scope():
        return await message_id(batch, place)
    if batch.is_settled:
        return settled_id(batch, place)
    raise ticket._writer.overdue(batch, place, ticket._size, limit.timeout_s)
