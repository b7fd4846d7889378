"""Did the cluster keep its promises? Checked over a history: 1 to 7 of ledgers.

    History ─► facts of each ledger ─► one function per promise ─► Violations

1  What a reader was given was sent, never changes or vanishes, and ids have no gap. It gets what
   it asked for, in order, each entry once, and all of it if it comes to the end.
2  With ack quorum = write quorum, each bookie of the list can serve what was read.
3  A recovery keeps what was acknowledged; whoever ends a ledger agrees on the end.
4  No entry is called absent that is there.
5  The location list is sound in every version; healed, it leads to whole copies.
6  What was acknowledged is somewhere, whatever was killed.
7  No reader is given an entry above the end of a closed ledger.

What topics promise, 15 to 20, is in message_checker.py; what groups promise in
group_checker.py; what timestamps promise, 8 to 10 and 27, in time_checker.py.

A history without Replica events is not held to what only the audit after healing
can tell. The time is that of sorting: n log n in the number of entries.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from facts import Facts, entries_of, gather
from group_checker import check_groups
from history import Acknowledged, History, Listed, ReadBack, size_of
from message_checker import check_messages
from replica_audit import missing_copies
from time_checker import check_time

from metadata.records import Fragment, LedgerState


class Violation(NamedTuple):
    """A promise that was broken. *entry* is None where it is about the whole ledger."""

    invariant: int
    ledger: int
    entry: int | None
    message: str


def check(history: History) -> list[Violation]:
    """Return all broken promises, by ledger; none: the history is as it should be."""
    ledgers = gather(history)
    found = [violation for facts in ledgers for violation in _check_ledger(facts)]
    if any(facts.replicas for facts in ledgers):
        found += [violation for facts in ledgers for violation in _audited(facts)]
    found += [Violation(*broken) for broken in check_messages(history)]
    others = [*check_groups(history), *check_time(history)]
    return found + [Violation(number, 0, None, told) for number, told in others]


def _check_ledger(facts: Facts) -> Iterator[Violation]:
    for promise in PROMISES:
        for entry, message in promise.broken(facts):
            yield Violation(promise.invariant, facts.ledger, entry, message)


def _audited(facts: Facts) -> Iterator[Violation]:
    for invariant, entry, message in missing_copies(facts):
        yield Violation(invariant, facts.ledger, entry, message)


Broken = Iterator[tuple[int | None, str]]


class Promise(NamedTuple):
    """Something that must hold of every ledger; *broken* yields where it does not."""

    invariant: int
    broken: Callable[[Facts], Broken]


# --- 1: what a reader is given ----------------------------------------------------------


def _changed(facts: Facts) -> Broken:
    """An entry has one content, for the writer and for every reader."""
    told = facts.returned | facts.acked
    events: list[Acknowledged | ReadBack] = [*facts.acks, *facts.reads]
    for event in events:
        for entry, digest in entries_of(event):
            if digest != told[entry]:
                yield entry, f"{digest:x} at one time, {told[entry]:x} at another"


def _never_sent(facts: Facts) -> Broken:
    """Each entry read was sent, under this id if its writer knew it, and as often as it is read."""
    read = Counter(facts.returned.values())
    for entry, digest in facts.returned.items():
        expected = facts.sent_as.get(entry)
        if read[digest] > facts.sent[digest] or (expected and digest not in expected):
            yield entry, f"{digest:x} was read and not sent so, or not so often"


def _gaps(facts: Facts) -> Broken:
    """Each id up to the greatest acknowledged one belongs to something that was sent."""
    sent = sum(facts.sent.values())
    refused = sum(event.count for event in facts.refusals if not event.unknown)
    unaccounted = sent - refused - len(facts.acked)
    missing = max(facts.acked, default=-1) + 1 - len(facts.acked)
    if missing > unaccounted:
        last = max(facts.acked)
        yield last, f"of the entries before it, {missing - unaccounted} were never sent"


def _vanished(facts: Facts) -> Broken:
    """Entries read before the ledger was closed are below its end."""
    yield from _read_above_end(facts, after=False)


def _misread(facts: Facts) -> Broken:
    """A reader gets what it asked for: one entry after the other, and all if it came to the end."""
    given: defaultdict[str, list[ReadBack]] = defaultdict(list)
    for event in facts.reads:
        given[event.reader].append(event)
    for name, asked in facts.asked.items():
        last = facts.end if asked.last is None else asked.last
        position = asked.first
        for event in given[name]:
            if event.first != position:
                yield event.first, f"{name} got it, and {position} was the next"
            position = event.first + len(event.digests)
        if asked.last is not None and position > asked.last + 1:
            yield position - 1, f"{name} got it, and asked for no more than {asked.last}"
        if name in facts.done and last is not None and position <= last:
            yield position, f"{name} came to the end of {asked.first} to {last} without it"


# --- 3: recovery ------------------------------------------------------------------------


def _cut_off(facts: Facts) -> Broken:
    """Nothing above the end was acknowledged, neither before the ledger ended nor after."""
    for entry in sorted(facts.acked):
        if facts.end is not None and entry > facts.end:
            yield entry, f"acknowledged, and the ledger ends at {facts.end}"


def _disagreement(facts: Facts) -> Broken:
    """Whoever is told the end of the ledger is told the same."""
    ends = {(event.last_entry, event.length) for event in facts.ends}
    last = {e.last_entry for e in [*facts.ends, *facts.listings] if _is_end(e)}
    if len(ends) > 1 or len(last) > 1:
        yield None, f"ends at {sorted(last)}; (last entry, length) as told: {sorted(ends)}"


def _is_end(event: object) -> bool:
    return not isinstance(event, Listed) or event.state is LedgerState.CLOSED


def _wrong_length(facts: Facts) -> Broken:
    """The length is that of the entries up to the end, where these are all known."""
    for event in facts.ends[:1]:
        digests = [facts.known(entry) for entry in range(event.last_entry + 1)]
        sizes = [size_of(digest) for digest in digests if digest is not None]
        if len(sizes) == len(digests) and sum(sizes) != event.length:
            yield None, f"length {event.length}; its entries have {sum(sizes)} bytes"


STATES = list(LedgerState)


def _moved_back(facts: Facts) -> Broken:
    """The state only moves forward."""
    for before, after in itertools.pairwise(facts.versions):
        if STATES.index(after.state) < STATES.index(before.state):
            yield (
                None,
                f"{before.state.value} in version {before.version}, then {after.state.value}",
            )


# --- 4 ----------------------------------------------------------------------------------


def _called_absent(facts: Facts) -> Broken:
    """A reader that asks for what is confirmed is not told that there is no such entry."""
    for event in facts.absences:
        if facts.end is None or event.entry <= facts.end:
            yield event.entry, f"{event.reader} was told that there is none"


# --- 5: the location list ---------------------------------------------------------------


def _unsound_list(facts: Facts) -> Broken:
    """In every version the list rises from entry 0 and names different bookies."""
    for listed in facts.listings:
        starts = [fragment.first_entry for fragment in listed.fragments]
        if starts[:1] != [0] or starts != sorted(set(starts)):
            yield None, f"version {listed.version}: fragments begin at {starts}"
        for fragment in listed.fragments:
            if problem := _unsound_fragment(fragment, facts):
                yield fragment.first_entry, f"version {listed.version}: {problem}"


def _unsound_fragment(fragment: Fragment, facts: Facts) -> str:
    if len(set(fragment.bookies)) != len(fragment.bookies):
        return f"names a bookie twice: {fragment.bookies}"
    if facts.created and len(fragment.bookies) != facts.created.ensemble_size:
        return f"{len(fragment.bookies)} bookies for {facts.created.ensemble_size}"
    return ""


def _two_lists(facts: Facts) -> Broken:
    """A version is one record, whoever looks."""
    seen: dict[int, Listed] = {}
    for listed in facts.listings:
        other = seen.setdefault(listed.version, listed)
        if (other.state, other.fragments) != (listed.state, listed.fragments):
            yield None, f"version {listed.version} is two different records"


# --- 7 ----------------------------------------------------------------------------------


def _past_end(facts: Facts) -> Broken:
    """Entries read after the ledger was closed are below its end."""
    yield from _read_above_end(facts, after=True)


def _read_above_end(facts: Facts, *, after: bool) -> Broken:
    if facts.end is None:
        return
    ended = min((event.at for event in facts.ends), default=float("inf"))
    for event in facts.reads:
        last = event.first + len(event.digests) - 1
        if last > facts.end and (event.at >= ended) is after:
            yield last, f"{event.reader} read it, and the ledger ends at {facts.end}"


PROMISES = [
    Promise(1, _changed),
    Promise(1, _never_sent),
    Promise(1, _gaps),
    Promise(1, _vanished),
    Promise(1, _misread),
    Promise(3, _cut_off),
    Promise(3, _disagreement),
    Promise(3, _wrong_length),
    Promise(3, _moved_back),
    Promise(4, _called_absent),
    Promise(5, _unsound_list),
    Promise(5, _two_lists),
    Promise(7, _past_end),
]
