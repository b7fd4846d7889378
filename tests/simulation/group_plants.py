"""Mistakes with groups, each of which the simulation must find. As plants.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from plants import Plant
from replaced import replaced

from ledger_client.groups import progress, sharing
from ledger_client.groups.feed import TopicFeed
from ledger_client.groups.holdings import Held
from ledger_client.groups.partitions import Holder, Partitions
from ledger_client.groups.share import Share, State, done_bits
from ledger_client.groups.shared import Shared
from ledger_client.groups.sharing import Sharing
from metadata.groups.assignment import Part
from metadata.groups.calls import GroupReply, GroupRequest
from metadata.groups.coordinator import Coordinator, Office
from metadata.groups.group import Group
from metadata.groups.rows import MemberRecord, parts_of, runs_of
from metadata.groups.shares import ShareRecord, decode_share
from metadata.store import ABSENT, Check


@contextmanager
def commit_from_an_old_epoch() -> Iterator[None]:
    """Commit whatever became of the member's row since it was read."""
    with replaced(progress, "Check", lambda _key, _version: Check("none", ABSENT)):
        yield


@contextmanager
def lose_wake_ups() -> Iterator[None]:
    """Let messages arrive, and wake nobody who waits for them."""

    def notify(feed: TopicFeed) -> None:
        feed._merged.notify()

    with replaced(TopicFeed, "_notify", notify):
        yield


@contextmanager
def read_on_when_revoked() -> Iterator[None]:
    """Say that what is revoked was given up, and read on and commit it while that works."""
    apply = Partitions.apply

    async def apply_parts(self: Partitions, row: MemberRecord | None, holder: Holder) -> None:
        if row is not None:
            kept = runs_of(parts_of(row.parts) | self.active)
            row = msgspec.structs.replace(row, parts=kept, revoked=[])
        await apply(self, row, holder)

    with replaced(Partitions, "apply", apply_parts):
        yield


@contextmanager
def forget_members() -> Iterator[None]:
    """Take members for silent for long when another bookie leads."""
    add = Group.add_stored

    def add_silent(group: Group, name: str, record: MemberRecord, version: int, now: float) -> None:
        add(group, name, record, version, now - record.session_s - 1)

    with replaced(Group, "add_stored", add_silent):
        yield


@contextmanager
def answer_after_the_term() -> Iterator[None]:
    """Answer members as long as they ask, also when another bookie leads."""
    offices: dict[Coordinator, Office] = {}
    real_answer = Coordinator.answer

    async def answer(coordinator: Coordinator, request: GroupRequest) -> GroupReply:
        office = coordinator._office or offices.get(coordinator)
        if office is None:
            return await real_answer(coordinator, request)
        offices[coordinator] = office
        return await office.answer(request)

    with replaced(Coordinator, "answer", answer):
        yield


@contextmanager
def lose_acks_when_a_hole_closes() -> Iterator[None]:
    """Store nothing of what was acknowledged behind a hole, once there is none at the begin."""
    row = Share.row

    def row_without(share: Share, run: str, *, without: Sequence[int] = ()) -> ShareRecord:
        record = row(share, run, without=without)
        left = [at for at, state in enumerate(share.states) if state != State.DONE]
        if not left or left[0] == 0:
            return record
        lost = range(left[0], len(share.states))
        return msgspec.structs.replace(record, done=done_bits(len(share.states), lost))

    with replaced(Share, "row", row_without):
        yield


@contextmanager
def forget_counts_of_the_lost() -> Iterator[None]:
    """Take shares over as if nothing of them had been delivered."""

    def decode_uncounted(key: str, value: bytes) -> ShareRecord:
        record = decode_share(key, value)
        return msgspec.structs.replace(record, deliveries=0, is_blind=False, tries={})

    with replaced(sharing, "decode_share", decode_uncounted):
        yield


@contextmanager
def give_slots_on_in_hand() -> Iterator[None]:
    """Say that a slot is given up while its messages are in hand."""

    async def hand_over(_sharing: Sharing, _parts: set[Part]) -> None:
        return

    with replaced(Sharing, "hand_over", hand_over):
        yield


@contextmanager
def pass_those_that_come_again() -> Iterator[None]:
    """Hand out later messages of a key while one is to come again."""
    with replaced(Held, "precedes", lambda _held, _spot: False):
        yield


@contextmanager
def bury_too_early() -> Iterator[None]:
    """Take the delivery before the last for the last."""

    def is_over(shared: Shared, share: Share, index: int) -> bool:
        limit = shared._options.deliveries_max
        return bool(limit) and share.count(index) >= max(limit - 1, 1)

    with replaced(Shared, "_is_over", is_over):
        yield


GROUP_PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        commit_from_an_old_epoch,
        lose_wake_ups,
        read_on_when_revoked,
        forget_members,
        answer_after_the_term,
        lose_acks_when_a_hole_closes,
        forget_counts_of_the_lost,
        give_slots_on_in_hand,
        pass_those_that_come_again,
        bury_too_early,
    )
}
