"""Positions as the offsets of a streaming query: JSON that Spark keeps in its checkpoint.

    {"shop/orders": {"uid": 7, "0/0": "3:1200:17:881:5203", "0/1": "0:4:0:884:4"}}

For each topic its uid and, for each lane of a partition, the place in it: the number of the
ledger in the lane, entry, messages of the entry before it, ledger id, version. A lane that is
not named is not begun.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ledger_client.topics.errors import BadTopic
from ledger_client.topics.reading.places import LanePlace, Place

Offset = Mapping[str, Mapping[str, str | int]]
_LANE = re.compile(r"(-1|\d{1,10})/(\d{1,10})", re.ASCII)
_PLACE = re.compile(r"(-1|\d{1,19}):(\d{1,19}):(\d{1,19}):(-1|\d{1,19}):(-1|\d{1,19})", re.ASCII)


def offset_of(
    position: Iterable[LanePlace], uids: Mapping[str, int]
) -> dict[str, dict[str, str | int]]:
    """Return a position as an offset; *uids* has the topics, also those without lanes yet."""
    offset: dict[str, dict[str, str | int]] = {name: {"uid": uids[name]} for name in sorted(uids)}
    for each in sorted(position):
        lane = f"{each.partition}/{each.lane}"
        offset.setdefault(each.topic, {"uid": each.uid})[lane] = ":".join(map(str, each.place))
    return offset


def position_of(offset: Offset) -> tuple[LanePlace, ...]:
    """Return an offset as a position.

    Raises:
        ValueError: it is no offset.
    """
    found: list[LanePlace] = []
    for topic, uid in _uids(offset).items():
        lanes = offset[topic]
        named = [lane for lane in lanes if lane != "uid"]
        found += [_lane_place(topic, uid, lane, lanes[lane]) for lane in named]
    return tuple(sorted(found))


def check_topics(offset: Offset, uids: Mapping[str, int]) -> None:
    """Return if an offset is of these topics, also of those whose lanes it does not name.

    Raises:
        ValueError: it is no offset.
        BadTopic: one was deleted, and made again, since.
    """
    for topic, uid in _uids(offset).items():
        if uids.get(topic, uid) != uid:
            told = "the offset is of another topic of this name, which was deleted"
            raise BadTopic(told, topic=topic)


def _uids(offset: Offset) -> dict[str, int]:
    found: dict[str, int] = {}
    for topic, lanes in offset.items():
        uid = lanes.get("uid") if isinstance(lanes, Mapping) else None
        if not isinstance(uid, int):
            raise ValueError(f"the offset of {topic} has no uid")  # noqa: TRY004 - it came as JSON
        found[topic] = uid
    return found


def _lane_place(topic: str, uid: int, lane: str, text: str | int) -> LanePlace:
    where, place = _LANE.fullmatch(lane), _PLACE.fullmatch(str(text))
    if where is None or place is None:
        raise ValueError(f"{topic}: {lane!r}: {text!r} is no place in a lane")
    return LanePlace(topic, uid, int(where[1]), int(where[2]), Place(*map(int, place.groups())))
