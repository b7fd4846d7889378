"""What readers of the compacted topic get instead of a message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ledger_client.errors import LedgerError
from ledger_client.message_id import MessageId
from ledger_client.topics.context import TopicContext
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import LaneRef
from ledger_client.topics.reading.compacted import CompactedRange, CompactedSets, range_of
from ledger_client.topics.reading.search import find_compacted
from ledger_client.topics.tracing.whereabouts import Compacted, KeySearch
from metadata.compaction import CompactedSet
from metadata.topics import TopicRecord

FindLatest = Callable[[bytes], Awaitable[KeySearch]]
"""Returns the newest message of a key that compacted readers get, as far as it can be found."""


async def compacted_view(
    context: TopicContext,
    topic: TopicRecord,
    lane: LaneRef,
    message_id: MessageId,
    message: Message | None,
    find_latest: FindLatest,
) -> Compacted | None:
    """Return what became of a message in the topic's compacted set; `None` without a set.

    Args:
        context: the client's.
        topic: the topic's record.
        lane: the message's lane.
        message_id: its id.
        message: itself; `None` if it is gone or cannot be read.
        find_latest: searches the message's partition.

    Raises:
        MetadataUnavailable, MetadataBroken: the store did not answer, or the set is damaged.
    """
    sets = CompactedSets(context.store, timeout_s=context.catalogue.timeout_s)
    found = await sets.set_of(topic.uid)
    if found is None:
        return None
    compacted = range_of(found, lane)
    if compacted is None or message_id.ledger_id > compacted.last_ledger_id:
        why = "its ledger is not compacted yet, so compacted readers get it"
        return Compacted(generation=found.generation, state="not yet", why=why)
    try:
        return await _in_set(context, lane, found, compacted, message_id, message, find_latest)
    except LedgerError as failure:
        return Compacted(generation=found.generation, state="unknown", why=str(failure))


async def _in_set(
    context: TopicContext,
    lane: LaneRef,
    found: CompactedSet,
    compacted: CompactedRange,
    message_id: MessageId,
    message: Message | None,
    find_latest: FindLatest,
) -> Compacted:
    """Return what became of a message before the horizon. Raises as reading does."""
    generation = found.generation
    place = await find_compacted(lane, compacted, context.opener, message_id, after=False)
    wanted = (message_id.ledger_id, message_id.entry_id, max(message_id.batch_index, 0))
    if place is not None and (place.ledger_id, place.entry, place.skip) == wanted:
        why = "it is the latest of its key there, so compacted readers get it"
        return Compacted(generation=generation, state="kept", why=why)
    if message is None:
        why = "compacted readers do not get it: a later message of its key counts, or none"
        return Compacted(generation=generation, state="dropped", why=why)
    if message.key is None:
        why = "it has no key, and compaction drops such messages"
        return Compacted(generation=generation, state="dropped", why=why)
    search = await find_latest(message.key)
    if search.newest:
        why = f"compacted readers get {search.newest[0]}, a later message of its key"
        return Compacted(generation=generation, state="replaced", why=why, newest=search.newest[0])
    if search.unread:
        why = f"a later message of its key counts, which was not found: {search.unread[0].reason}"
        return Compacted(generation=generation, state="unknown", why=why)
    why = "compacted readers get nothing of its key: a later message deleted it"
    return Compacted(generation=generation, state="dropped", why=why)
