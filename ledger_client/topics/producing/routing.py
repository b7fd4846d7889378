"""The partition of a message: by its key, in turn batch by batch, or as the caller says.

A key's partition is that of Pulsar's clients: MurmurHash3, without its sign, modulo the
partitions. So all clients send a key to the same partition. When partitions are
added a key may get another one: its messages stay ordered within its old and its new partition.

A message with a number always goes to the same partition, so that a second sending finds the first.
So when partitions are added, the producer and its lanes agree on a boundary above every number that
was accepted by then. Numbers below it keep the old count of partitions for good. A message without
a key takes its turn by its number, a thousand to a turn.

    PartitionCount   event                         next       what the driver does
    --------------   ---------------------------   --------   -------------------------------
    settled          grow, without numbers         settled    routes over all partitions
    settled          grow                          changing   writes `chosen` to the first lane
    changing         boundary_failed               changing   tries again at the next look
    changing         boundary_durable              settled    routes over all partitions

While it changes, no partition accepts anything. Once a boundary was chosen there is no way back,
because the lane may have it whatever the failure says: until it is durable, senders get that
failure. A session of the same name takes the first lane first. If it did so before the boundary
was written, writing it fails and this session is fenced; if it does so later, it reads the
boundary. The other lanes get it with the next batch that they take.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from ledger_client.errors import BadTopic, LedgerError
from ledger_client.topics.lanes.routes import Route, extended
from ledger_client.topics.producing.partition_machine import PartitionMachine
from native.columns import Columns
from native.route import NO_PARTITION, murmur3, route, rows_of

_SIGN = 1 << 31
TURN_MESSAGES = 1000
"""Consecutive numbers without a key that go to one partition. Never to be changed: it decides
where a message that is sent again is looked for."""


class PartitionCount:
    """The count of partitions that each number is routed over.

    Attributes:
        partitions: the count that new messages are routed over; 0: there is one partition.
        known: the routes that the producer and its lanes agreed on, in order; empty before, and
            for a producer without a name.
        chosen: a change of `known` that is not durable yet; empty if there is none.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.known: list[Route] = []
        self.chosen: list[Route] = []
        self._held: list[PartitionMachine] = []

    def agree(self, routes: Sequence[Route]) -> None:
        """Route by *routes* from now on: they are durable, or nothing was sent yet."""
        self.known = list(routes)
        self.partitions = routes[-1][0]

    def partitions_at(self, sequence: int) -> int:
        """Return the count of partitions over which this number is routed."""
        at = bisect_right(self.known, sequence, key=itemgetter(1)) - 1
        return self.known[at][0] if at >= 0 else self.partitions

    def grow(self, machines: Sequence[PartitionMachine], added: Sequence[PartitionMachine]) -> None:
        """Partitions were *added* behind those of *machines*, which are all ready."""
        every = [*machines, *added]
        if not self.known:
            self.partitions = len(every)
            return
        for machine in machines:
            machine.hold()
        self._held = list(machines)
        self.chosen = extended(self.known, len(every), following(every))

    def boundary_durable(self) -> None:
        """The first lane has `chosen`, and no other session had taken that lane."""
        self.agree(self.chosen)
        self.chosen = []
        for machine in self._held:
            machine.release()

    def boundary_failed(self, failure: LedgerError) -> None:
        """The first lane may have `chosen` or not."""
        for machine in self._held:
            machine.refuse(failure)


def following(machines: Sequence[PartitionMachine]) -> int:
    """Return a number above all that were accepted, also those that failed.

    Failed messages may be sent again after later ones, which have another partition.
    """
    return 1 + max(machine.highest_number for machine in machines)


class Share(NamedTuple):
    """Messages of a chunk that go to one partition, by its place among the producer's.

    *place* None: to each partition in turn, batch by batch. *rows* None: all messages.
    """

    place: int | None
    rows: array[int] | None


class Routing:
    """Finds the partition of a message, as a place among those of a producer.

    Never changed: a call that is under way goes on with the partitions that it began with.
    """

    def __init__(self, topic: str, machines: Sequence[PartitionMachine], *, by_key: bool) -> None:
        """*by_key*: keys decide; otherwise all messages take their turns."""
        self.topic = topic
        self.by_key = by_key
        self._machines = list(machines)
        self._place_of = {machine.partition: place for place, machine in enumerate(machines)}
        self._count = len(machines)
        self._turn = random.randrange(self._count)

    def place_for(self, key: bytes | None) -> int:
        """Return the place of a message without a partition and without a number."""
        if self._count == 1:
            return 0
        if key is not None and self.by_key:
            return (murmur3(key) & ~_SIGN) % self._count
        if self._machines[self._turn].gathering is None:
            return self.next_in_turn()
        return self._turn

    def place_at(self, sequence: int, key: bytes | None, partitions: int) -> int:
        """Return the place of a message with this number, the same whenever it is sent.

        *partitions*: the count over which the number is routed.
        """
        if key is not None and self.by_key:
            return (murmur3(key) & ~_SIGN) % partitions
        return sequence // TURN_MESSAGES % partitions

    def place_of(self, partition: int) -> int:
        """Return the place of a partition. Raises BadTopic if the producer does not have it."""
        place = self._place_of.get(partition)
        if place is None:
            raise BadTopic(f"this producer has no partition {partition}", topic=self.topic)
        return place

    def next_in_turn(self) -> int:
        """Return the place of the next batch of messages without a key."""
        self._turn = (self._turn + 1) % self._count
        return self._turn

    def places_of(self, keys: Columns) -> array[int]:
        """Return the place of each key, NO_PARTITION for null; the keys are the values."""
        return route(keys.values, self._count)

    def shares(self, columns: Columns) -> list[Share]:
        """Return the rows that go to each partition."""
        if columns.keys is None or not self.by_key:
            return [Share(None, None)]
        partition_of = route(columns.keys, self._count)
        grouped = rows_of(partition_of, self._count)
        keyless = array("I")
        if sum(map(len, grouped)) < columns.count:
            keyless.extend(i for i, found in enumerate(partition_of) if found == NO_PARTITION)
        if keyless and self._machines[0].rules.is_ordered:
            # All go to one partition, in their places: as a batch of their own they would be late.
            turn = self.next_in_turn()
            grouped[turn] = array("I", sorted(grouped[turn] + keyless))
            keyless = array("I")
        shares = [Share(place, rows) for place, rows in enumerate(grouped) if rows]
        return [*shares, Share(None, keyless)] if keyless else shares
