"""Event times of a whole call, checked before the first of its messages is sent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import le

from ledger_client.topics.producing.outbox import Outbox
from ledger_client.topics.producing.pieces import Given
from ledger_client.topics.producing.routing import Routing
from native.route import NO_PARTITION

STEP = 65536


def check_times(given: Given, first: int, targets: list[Outbox], routing: Routing) -> None:
    """Return when the messages from *first* on are in order in each lane, behind what it has.

    A message that may go to any lane must not be lower than the last of any.

    Raises:
        EventTimeBack: naming the first that is lower.
        BadTopic: a message has no event time.
    """
    times = given.times()
    if times is None:
        targets[0].admission.refuse_timeless()
    times = times[first:]
    if not times:
        return
    lasts = [outbox.admission.last_event_time for outbox in targets]
    behind = all(last is None or last <= times[0] for last in lasts)
    if behind and all(map(le, times, islice(times, 1, None))):
        return
    _check_each(times, _lanes(given, first, targets, routing), targets)


def _lanes(
    given: Given, first: int, targets: list[Outbox], routing: Routing
) -> Iterator[Outbox | None]:
    """Yield where each message goes; None: to any."""
    by_key = given.has_keys and routing.by_key
    for start in range(first, given.count, STEP):
        stop = min(start + STEP, given.count)
        if len(targets) == 1 or not by_key:
            target = targets[0] if len(targets) == 1 else None
            yield from (target for _ in range(start, stop))
        else:
            for place in routing.places_of(given.keys(start, stop)):
                yield None if place == NO_PARTITION else targets[place]


def _check_each(times: memoryview, lanes: Iterator[Outbox | None], targets: list[Outbox]) -> None:
    last = {outbox: outbox.admission.last_event_time for outbox in targets}
    for time, lane in zip(times, lanes, strict=True):
        for outbox in targets if lane is None else [lane]:
            before = last[outbox]
            if before is not None and time < before:
                outbox.admission.refuse(time, before)
            last[outbox] = time
