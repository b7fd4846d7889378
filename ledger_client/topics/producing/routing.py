"""Which partition a message goes to: by its key, in turn batch by batch, or as it says.

A key's partition is that of Pulsar's clients: MurmurHash3, without its sign, modulo the
partitions. So messages of a key keep their order, whoever sends them. When partitions are
added a key may get another one: its order is kept in each of the two. A message with a number
always goes to the same partition: the number says how many partitions there were (routes.py),
and a message without a key takes its turn by its number, a thousand to a turn.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from ledger_client.topics.errors import BadTopic
from ledger_client.topics.producing.outbox import Outbox
from native.columns import Columns
from native.route import NO_PARTITION, murmur3, route, rows_of

_SIGN = 1 << 31
TURN_MESSAGES = 1000
"""Consecutive numbers without a key that go to one partition. Never to be changed: it decides
where a message that is sent again is looked for."""


class Share(NamedTuple):
    """Messages of a piece; *outbox* None: batch by batch in turn; *rows* None: all of them."""

    outbox: Outbox | None
    rows: array[int] | None


class Routing:
    """Finds the outbox of a message among those of a producer, one for each partition.

    Attributes:
        topic: its name.
        by_key: whether a key decides; else all take their turns.
    """

    def __init__(self, topic: str, outboxes: Sequence[Outbox], *, by_key: bool) -> None:
        self.outboxes = list(outboxes)
        self.topic = topic
        self.by_key = by_key
        self._of = {outbox.partition: outbox for outbox in outboxes}
        self._turn = random.randrange(len(self.outboxes))

    def outbox_for(self, key: bytes | None, partition: int | None) -> Outbox:
        """Return where a message goes. Raises BadTopic for a partition that there is not."""
        if partition is not None:
            return self.outbox_of(partition)
        if len(self.outboxes) == 1:
            return self.outboxes[0]
        if key is not None and self.by_key:
            return self.outboxes[(murmur3(key) & ~_SIGN) % len(self.outboxes)]
        if self.outboxes[self._turn].dispatch.gathering is None:
            return self.next_in_turn()
        return self.outboxes[self._turn]

    def outbox_at(self, sequence: int, key: bytes | None, partitions: int) -> Outbox:
        """Return where a message with this number goes, whenever it is sent.

        *partitions*: over how many the number is routed.
        """
        if key is not None and self.by_key:
            return self.outboxes[(murmur3(key) & ~_SIGN) % partitions]
        return self.outboxes[sequence // TURN_MESSAGES % partitions]

    def outbox_of(self, partition: int) -> Outbox:
        """Return that of a partition. Raises BadTopic for one that there is not."""
        outbox = self._of.get(partition)
        if outbox is None:
            raise BadTopic(f"this producer has no partition {partition}", topic=self.topic)
        return outbox

    def next_in_turn(self) -> Outbox:
        """Return where the next batch of messages without a key goes."""
        self._turn = (self._turn + 1) % len(self.outboxes)
        return self.outboxes[self._turn]

    def places_of(self, keys: Columns) -> array[int]:
        """Return where in *outboxes* each one's is, NO_PARTITION for any; keys are the values."""
        return route(keys.values, len(self.outboxes))

    def shares(self, columns: Columns) -> list[Share]:
        """Return which messages go where."""
        if columns.keys is None or not self.by_key:
            return [Share(None, None)]
        partition_of = route(columns.keys, len(self.outboxes))
        grouped = rows_of(partition_of, len(self.outboxes))
        keyless = array("I")
        if sum(map(len, grouped)) < columns.count:
            keyless.extend(i for i, found in enumerate(partition_of) if found == NO_PARTITION)
        if keyless and self.outboxes[0].admission.ordered:
            self.next_in_turn()  # all to one, in their places: by themselves they would be late
            grouped[self._turn] = array("I", sorted(grouped[self._turn] + keyless))
            keyless = array("I")
        pairs = zip(self.outboxes, grouped, strict=True)
        shares = [Share(outbox, rows) for outbox, rows in pairs if rows]
        return [*shares, Share(None, keyless)] if keyless else shares
