"""Topics that a consumer names and that were deleted: the application hears of each once.

Whoever notices a deletion notes it here. A topic of which the last partition went, or never came,
may have been deleted, or is another member's: it is looked up, however long the store is away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping

import trio

from ledger_client.errors import LedgerError, NoSuchTopic
from ledger_client.topics.context import TopicContext
from metadata.topics import TopicRecord

RETRY_S = 0.5
FIRST_LOOK_S = 5.0
"""From the start of a consumer until topics are looked up of which it has no partition."""
_log = logging.getLogger(__name__)


class Deletions:
    """The deletions that concern one consumer.

    Args:
        context: the client's.
        named: the topics that the application hears of: their names, by uid.
        read: by uid, the topics that are read: whoever reads them notices their deletion.
        nursery: for tasks that look topics up.
        on_news: called when raise_one() has something to raise.
    """

    def __init__(
        self,
        context: TopicContext,
        named: Mapping[int, str],
        read: Container[int],
        nursery: trio.Nursery,
        on_news: Callable[[], None],
    ) -> None:
        self._context = context
        self._names = frozenset(named.values())
        self._named = dict(named)
        """by uid, those whose deletion was not noted yet"""
        self._read = read
        self._nursery = nursery
        self._on_news = on_news
        self._doubted: set[int] = set()
        """topics that are to be looked up"""
        self._looked_up: set[int] = set()
        """those that are just being looked up"""
        self._untold: list[str] = []

    def begin(self, topic: TopicRecord) -> None:
        """Note that a topic is read: one that was made anew has another uid."""
        if topic.name in self._names:
            self._named[topic.uid] = topic.name

    def note(self, uid: int) -> None:
        """Note that a topic was deleted."""
        name = self._named.pop(uid, None)
        if name is not None:
            self._untold.append(name)
            self._on_news()

    def raise_one(self) -> None:
        """Raise NoSuchTopic for a deletion that the application has not heard of yet."""
        if self._untold:
            raise NoSuchTopic(self._untold.pop(0))

    def doubt(self, uid: int) -> None:
        """Have a topic looked up by look(), unless it is read by then."""
        if uid in self._named:
            self._doubted.add(uid)

    def look(self) -> None:
        """Look up the topics in doubt, in tasks of their own."""
        doubted = self._doubted - self._looked_up
        self._doubted -= doubted
        for uid in sorted(doubted):
            if uid not in self._read:
                self._looked_up.add(uid)
                self._nursery.start_soon(self._look_up, uid)

    async def look_at_unread(self) -> None:
        """Look up topics of which the member got no partition: they may have gone before."""
        await trio.sleep(FIRST_LOOK_S)
        self._doubted |= self._named.keys()
        self.look()

    async def _look_up(self, uid: int) -> None:
        """Note whether a topic was deleted, as soon as the store says so."""
        while uid in self._named and uid not in self._read:
            name = self._named[uid]
            try:
                found = await self._context.catalogue.find(name)
            except LedgerError as failure:
                _log.warning("topic %s not looked up yet: %s", name, failure)
                await trio.sleep(RETRY_S)
                continue
            if found is None or found[0].uid != uid or found[0].state != "active":
                self.note(uid)
            break
        self._looked_up.discard(uid)
        self.look()  # it may have come into doubt once more
