"""Records the dead letters of a group in a history, once its members are at rest."""

from __future__ import annotations

from event import mark_of
from group_events import LetterRead, LettersRead
from history import Recorder

from ledger_client import Client
from ledger_client.errors import NoSuchTopic
from ledger_client.groups.options import DEAD_PREFIX
from ledger_client.topics.lanes.lane_end import close_lane
from ledger_client.topics.messages import Message
from metadata.store import items_under
from metadata.topics import LANES, lane_of, topic_prefix


async def close_letters(client: Client, topic: str) -> None:
    """Close what members left open of the *topic* of dead letters. Raises LedgerError."""
    context = client._context
    found = await context.catalogue.find(topic)
    if found is not None:
        for key, _ in await items_under(context.store, topic_prefix(LANES, found[0].uid)):
            await close_lane(context.ledgers, found[0], *lane_of(key))


async def read_letters(client: Client, topic: str, history: Recorder, group: str) -> None:
    """Record all dead letters of the *group*. Raises LedgerError; then it may be called again."""
    letters: list[LetterRead] = []
    try:
        async with client.reader(topic, end="latest") as reader:
            letters = [_letter(group, each) async for each in reader]
    except NoSuchTopic:
        pass  # there was no need of it
    for letter in letters:
        history.add(letter)
    history.add(LettersRead(group=group))


def _letter(group: str, message: Message) -> LetterRead:
    said = {name: message.headers.get(DEAD_PREFIX + name, b"").decode() for name in _HEADERS}
    return LetterRead(
        group=group,
        member=said["member"],
        topic=said["topic"],
        id=said["id"],
        partition=int(said["partition"]),
        of_group=said["group"],
        deliveries=int(said["deliveries"]),
        reason=said["reason"],
        mark=mark_of(message.value or b""),
        key=None if message.key is None else mark_of(message.key),
    )


_HEADERS = ("topic", "partition", "id", "group", "member", "deliveries", "reason")
