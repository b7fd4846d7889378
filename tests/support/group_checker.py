"""Did groups keep their promises? Checked over a history, like those of topics.

11  A partition has one owner at a time; only the owner commits it, in the epoch of its row.
12  Once nothing changes, each partition has an owner, and owners have about the same number.
13  Committed places go back only when asked to.
14  A ready member whose partition has news gets it, whatever hint was lost.
21  Every message is done at least once, and before the group's progress passes it.
22  An application gets messages of what was assigned to it, in order, and nothing else.
23  A member that reports in stays a member.

24 to 26, of acknowledgements, dead letters and keys, are in shared_group_checker.py, and, for
processes whose events are not in one order, in shared_checker.py.

Members of a shared group pass messages on, so 22 and a part of 21 do not concern it.

What only the end can show is checked where GroupSettled events are there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from operator import attrgetter

from group_events import (
    Assigned,
    BeatAnswered,
    Calm,
    DeadLetter,
    Delivered,
    GroupHappening,
    LagSeen,
    MemberLeft,
    MemberRemoved,
    MemberStored,
    Revoked,
    Spot,
    WentBack,
)
from group_facts import GroupFacts, Lane, Topics
from history import History
from shared_checker import SHARED_PROMISES, SharedFacts
from shared_group_checker import SLOT_PROMISES

from ledger_client.groups.options import TopicPartition

STUCK_S = 10.0
"""A ready member that lags must have got something by then."""

DECIDED_S = 20.0
"""A row may be removed so long after that was decided, as the store may be away."""


def check_groups(history: History) -> Iterator[tuple[int, str]]:
    """Yield each broken promise of each group, with its number."""
    by_group: defaultdict[str, list[GroupHappening]] = defaultdict(list)
    for event in history.events:
        if isinstance(event, GroupHappening):
            by_group[event.group].append(event)
    if not by_group:
        return
    topics = Topics(history)
    for group, events in sorted(by_group.items()):
        facts = GroupFacts(group, events, topics)
        for number, broken in [*PROMISES, *SLOT_PROMISES]:
            for told in broken(facts):
                yield number, f"group {group}: {told}"
        shared = SharedFacts(events, facts.spots())
        is_apart = facts.is_shared and not facts.options.revoke_s
        for number, violated in SHARED_PROMISES if is_apart else ():
            for told in violated(shared):
                yield number, f"group {group}: {told}"


# --- 11: who commits ----------------------------------------------------------------------


def _two_owners(facts: GroupFacts) -> Iterator[str]:
    """A partition is in one row at most."""
    rows: dict[str, list[TopicPartition]] = {}
    changes = [each for each in facts.events if isinstance(each, MemberStored | MemberRemoved)]
    for _, together in groupby(changes, key=attrgetter("seen_at")):
        for change in together:
            rows[change.member] = change.parts if isinstance(change, MemberStored) else []
        owners = Counter(part for parts in rows.values() for part in parts)
        for part in sorted(part for part, count in owners.items() if count > 1):
            named = sorted(member for member, parts in rows.items() if part in parts)
            yield f"{part} is in the rows of {named}"


def _not_the_owner(facts: GroupFacts) -> Iterator[str]:
    """Who commits has the partition, and its row has not changed since."""
    committers: dict[tuple[TopicPartition, int], str] = {}
    for commit, _ in facts.commits:
        if not commit.member:
            continue
        epoch, member = commit.epoch, commit.member
        first = committers.setdefault((commit.part, epoch), member)
        if first != member:
            yield f"{first} and {member} committed {commit.part} in epoch {epoch}"
        row = facts.rows.get((member, epoch))
        if row is not None and commit.part not in row.parts:
            yield f"{member} committed {commit.part}, which it does not have in epoch {epoch}"
        rows = [each for each in facts.stored[member] if each.version < commit.version]
        if rows and max(each.epoch for each in rows) > epoch:
            yield f"{member} committed {commit.part} in epoch {epoch}, which was over"
        newest = max((each.version for each in rows), default=0)
        if any(newest <= each.version < commit.version for each in _known(facts, member)):
            yield f"{member} committed {commit.part}, and was no member any more"


def _known(facts: GroupFacts, member: str) -> list[MemberRemoved]:
    return [each for each in facts.removed[member] if each.version]


# --- 12: the assignment -------------------------------------------------------------------


def _uneven(facts: GroupFacts) -> Iterator[str]:
    """In the end, each partition has an owner, and the owners have about the same number."""
    settled = facts.settled()
    if settled is None:
        return
    rows: dict[str, list[TopicPartition]] = {}
    for event in facts.events[: facts.events.index(settled)]:
        if isinstance(event, MemberStored):
            rows[event.member] = event.parts
        elif isinstance(event, MemberRemoved):
            rows.pop(event.member, None)
    owned = {part for parts in rows.values() for part in parts}
    units = facts.units(settled.parts)
    if rows and owned != units:
        yield f"nobody has {sorted(units - owned)}"
    counts = {member: len(parts) for member, parts in sorted(rows.items())}
    if counts and max(counts.values()) - min(counts.values()) > 1:
        yield f"partitions are not split evenly: {counts}"


# --- 13: places ---------------------------------------------------------------------------


def _went_back(facts: GroupFacts) -> Iterator[str]:
    """Places rise from commit to commit, but once for each time that the member asked for it."""
    asked: defaultdict[tuple[TopicPartition, str], list[tuple[int, dict[int, Spot]]]]
    asked = defaultdict(list)
    for order, event in enumerate(facts.events):
        if isinstance(event, WentBack):
            asked[event.part, event.member].append((order, event.places))
    places: dict[TopicPartition, dict[int, Spot]] = {}
    for commit, order in facts.commits:
        wishes = asked[commit.part, commit.member]
        fallen = _fallen(places.get(commit.part, {}), commit.places) if commit.member else {}
        wish = next((w for w in wishes if w[0] < order and fallen.items() <= w[1].items()), None)
        if wish is not None and fallen:
            wishes.remove(wish)
        for lane, now in fallen.items() if wish is None else ():
            before = places[commit.part][lane]
            yield (
                f"{commit.member} committed {now} in lane {lane} of {commit.part}, "
                f"where {before} was committed"
            )
        places[commit.part] = commit.places


def _fallen(before: dict[int, Spot], now: dict[int, Spot]) -> dict[int, Spot | None]:
    """Return the lanes whose place is lower than before, or gone, with where they are now."""
    return {
        lane: now.get(lane) for lane, spot in before.items() if lane not in now or now[lane] < spot
    }


# --- 14: nothing stands still -------------------------------------------------------------


def _stuck(facts: GroupFacts) -> Iterator[str]:
    """A ready member that lags gets something."""
    since: dict[TopicPartition, tuple[str, float]] = {}
    told: set[tuple[TopicPartition, str]] = set()
    is_calm = True
    for event in facts.events:
        if isinstance(event, Calm):
            is_calm, since = event.is_calm, {}
        elif isinstance(event, Delivered):
            for partition in {each.partition for each in event.ids}:
                since.pop(TopicPartition(event.topic, partition), None)
            # Whoever has some slots of several partitions works on one after the other.
            since = {part: found for part, found in since.items() if found[0]}
        elif isinstance(event, MemberStored | MemberRemoved):
            since = {
                part: found for part, found in since.items() if found[0] not in (event.member, "")
            }
        elif isinstance(event, LagSeen) and not (event.count and is_calm):
            since.pop(event.part, None)
        elif isinstance(event, LagSeen):
            member, at = since.setdefault(event.part, (event.member, event.at))
            if member != event.member:
                since[event.part] = event.member, event.at
            elif event.at - at >= STUCK_S and (event.part, member) not in told:
                told.add((event.part, member))
                who = member or "every member"
                yield f"{who} got nothing of {event.part} in {event.at - at:.1f} s, and lags"


# --- 21: at least once --------------------------------------------------------------------


def _passed_over(facts: GroupFacts) -> Iterator[str]:
    """An application was done with what progress passes."""
    places: dict[Lane, Spot] = {}
    for commit, order in facts.commits:
        if not commit.member or facts.is_shared:
            continue
        for lane, spot in commit.places.items():
            key = (commit.part, lane)
            due = facts.due.get(key, [])
            first = bisect_left(due, places.get(key, (-1, 0, 0)), key=attrgetter("spot"))
            stop = bisect_left(due, spot, key=attrgetter("spot"))
            for each in due[first:stop]:
                if facts.done.get((commit.part.topic, each.id), order) >= order:
                    yield f"{commit.member} committed {spot}, and {each.id} was not done"
            places[key] = max(spot, places.get(key, spot))


def _never_delivered(facts: GroupFacts) -> Iterator[str]:
    """In the end, an application has done every acknowledged message."""
    settled = facts.settled()
    if settled is None:
        return
    done = facts.done.keys() | {
        (each.topic, each.id) for each in facts.events if isinstance(each, DeadLetter)
    }
    for (part, lane), due in sorted(facts.due.items()):
        missing = [
            each.id
            for each in due
            if (part.topic, each.id) not in done and (part.topic, str(each.id)) not in facts.dead
        ]
        if part in settled.parts and missing:
            yield f"{len(missing)} messages of lane {lane} of {part} are not done: {missing[0]}"


# --- 22: what an application gets ---------------------------------------------------------


def _not_assigned(facts: GroupFacts) -> Iterator[str]:
    """Messages are of partitions that the application was told it has, and has still."""
    assigned: defaultdict[str, set[TopicPartition]] = defaultdict(set)
    for event in () if facts.is_shared else facts.events:
        if isinstance(event, Assigned):
            assigned[event.session] |= set(event.parts)
        elif isinstance(event, Revoked):
            assigned[event.session] -= set(event.parts)
        elif isinstance(event, Delivered):
            parts = {TopicPartition(event.topic, each.partition) for each in event.ids}
            if strange := sorted(parts - assigned[event.session]):
                yield f"{event.session} got messages of {strange}, which it was not assigned"
            row = facts.rows.get((event.member, event.epoch))
            if row is not None and (strange := sorted(parts - _readable(row))):
                yield (
                    f"{event.session} got messages of {strange} after it had said that it applied "
                    f"epoch {event.epoch}, in which it may not read them"
                )


def _readable(row: MemberStored) -> set[TopicPartition]:
    return set(row.parts) - set(row.revoked)


def _out_of_order(facts: GroupFacts) -> Iterator[str]:
    """From an assignment on, the messages of a lane come in their order, each once."""
    spots = facts.spots()
    last: dict[tuple[str, Lane], Spot] = {}
    for event in () if facts.is_shared else facts.events:
        if isinstance(event, Assigned):
            begun = set(event.parts)
            last = {
                key: spot
                for key, spot in last.items()
                if key[0] != event.session or key[1][0] not in begun
            }
        elif isinstance(event, Delivered):
            for lane, each in zip(event.lanes, event.ids, strict=True):
                key = (event.session, (TopicPartition(event.topic, each.partition), lane))
                spot = spots.get((event.topic, each))
                if spot is None:
                    continue
                if spot <= last.get(key, (-1, 0, 0)):
                    yield f"{event.session} got {each} after {last[key]} of the same lane"
                last[key] = spot


# --- 23: who reports in stays -------------------------------------------------------------


def _forgotten(facts: GroupFacts) -> Iterator[str]:
    """A member is removed only if it left, or was silent for its session."""
    beats: defaultdict[tuple[str, str], list[BeatAnswered]] = defaultdict(list)
    rows: dict[str, MemberStored] = {}
    left: set[tuple[str, str]] = set()
    for event in facts.events:
        if isinstance(event, BeatAnswered):
            beats[event.member, event.run].append(event)
        elif isinstance(event, MemberStored):
            rows[event.member] = event
        elif isinstance(event, MemberLeft):
            left.add((event.member, event.run))
        elif isinstance(event, MemberRemoved) and event.member in rows:
            row = rows[event.member]
            name = row.member, row.run
            if name not in left and beats[name] and not _was_silent(beats[name], event, row):
                since_s = event.seen_at - max(beat.asked_at for beat in beats[name])
                yield (
                    f"{row.member} was removed {since_s:.1f} s after a report that was answered, "
                    f"within its session of {row.session_s:g} s"
                )


def _was_silent(beats: list[BeatAnswered], gone: MemberRemoved, row: MemberStored) -> bool:
    """True if the coordinator heard nothing for a session, or may have when it decided."""
    if gone.seen_at - max(beat.asked_at for beat in beats) >= row.session_s:
        return True
    in_order = sorted(beats, key=attrgetter("asked_at"))
    return any(
        after.at - before.asked_at >= row.session_s and after.at >= gone.seen_at - DECIDED_S
        for before, after in pairwise(in_order)
    )


PROMISES: list[tuple[int, Callable[[GroupFacts], Iterator[str]]]] = [
    (11, _two_owners),
    (11, _not_the_owner),
    (12, _uneven),
    (13, _went_back),
    (14, _stuck),
    (21, _passed_over),
    (21, _never_delivered),
    (22, _not_assigned),
    (22, _out_of_order),
    (23, _forgotten),
]
