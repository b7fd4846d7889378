"""The topics of a member's partitions, found by uid: rows name topics by nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

import trio

from ledger_client.errors import NoSuchTopic
from ledger_client.topics.context import TopicContext
from metadata.topics import TopicRecord


class TopicSearch:
    """See the head of this module. What is found on the way is kept for those that follow.

    Args:
        context: the client's.
        names: the topics that the consumer names, which are looked up first.
    """

    def __init__(self, context: TopicContext, names: Sequence[str]) -> None:
        self._catalogue = context.catalogue
        self._names = names
        self._turn = trio.Lock()
        self._wanted: set[int] = set()
        self._found: dict[int, str] = {}
        """names by uid"""

    def keep(self, uids: Collection[int]) -> None:
        """Keep names of these topics alone."""
        self._wanted = set(uids)
        self._found = {uid: name for uid, name in self._found.items() if uid in self._wanted}

    def name(self, uid: int) -> str:
        """Return the name of a topic, or what stands for it where that is not known."""
        return self._found.get(uid, f"topic {uid}")

    async def topic(self, uid: int) -> TopicRecord:
        """Return the topic with this uid, as it is now. Raises NoSuchTopic, LedgerError."""
        if uid not in self._found:
            async with self._turn:
                if uid not in self._found:
                    await self._find(uid)
        name = self._found.get(uid)
        if name is not None:
            with suppress(NoSuchTopic):
                topic, _ = await self._catalogue.get(name)
                if topic.uid == uid:
                    return topic
            self._found.pop(uid, None)  # it was deleted, perhaps made anew
        raise NoSuchTopic(f"uid {uid}")

    async def _find(self, uid: int) -> None:
        """Note the name of a topic, and those that are found on the way."""
        known = set(self._found.values())
        for name in self._names:
            if uid in self._found:
                return
            if name not in known:
                with suppress(NoSuchTopic):
                    topic, _ = await self._catalogue.get(name)
                    self._found[topic.uid] = name
        if uid not in self._found:
            topics = await self._catalogue.list()
            wanted = {uid} | self._wanted
            self._found |= {each.uid: each.name for each in topics if each.uid in wanted}
