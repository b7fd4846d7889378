"""Transactions that wait together, and what becomes of each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from memory_store import MemoryStore
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client.wire.joint_changes import JointChanges
from metadata.errors import MetadataUnavailable, VersionConflict
from metadata.store import ABSENT, OPS_MAX, VALUE_SIZE_MAX, Check, Op, Put, Versions


class SlowStore(MemoryStore):
    """A store that takes a second for each change, and notes how many ops each had."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[int] = []

    async def transact(self, ops: Sequence[Op]) -> Versions:
        self.sent.append(len(ops))
        await trio.sleep(1)
        return await super().transact(ops)


async def together(
    store: SlowStore, changes: Sequence[Sequence[Op]], *, cancelled: int = -1
) -> list[Versions | Exception | None]:
    """Return the outcomes of changes that wait while another one is made.

    *cancelled*: the task of this one is cancelled while the changes are made.
    """
    joint = JointChanges(store)
    outcomes: list[Versions | Exception | None] = [None for _ in changes]

    async def make(index: int) -> None:
        with trio.move_on_after(1 if index == cancelled else 1000):
            try:
                outcomes[index] = await joint.transact(changes[index])
            except (VersionConflict, MetadataUnavailable) as failure:
                outcomes[index] = failure

    async with trio.open_nursery() as nursery:
        nursery.start_soon(joint.transact, [Put("first", b"")])
        await trio.sleep(0.5)
        for index in range(len(changes)):
            nursery.start_soon(make, index)
            await wait_all_tasks_blocked()
    return outcomes


async def test_changes_that_wait_together_are_one_transaction(autojump_clock: MockClock) -> None:
    store = SlowStore()
    changes = [[Put(f"a{n}", b"1", ABSENT), Put(f"b{n}", b"2", ABSENT)] for n in range(5)]
    outcomes = await together(store, changes)
    assert store.sent == [1, 10]
    for change, versions in zip(changes, outcomes, strict=True):
        assert isinstance(versions, list)
        assert [store.values[op.key].version for op in change] == versions


async def test_a_conflict_of_one_stops_no_other(autojump_clock: MockClock) -> None:
    store = SlowStore()
    changes: list[list[Op]] = [
        [Put("a", b"1", ABSENT)],
        [Check("b", 7), Put("c", b"2")],
        [Put("d", b"3", ABSENT)],
    ]
    outcomes = await together(store, changes)
    assert isinstance(outcomes[1], VersionConflict)
    assert store.values.keys() == {"first", "a", "d"}
    assert outcomes[0] == [store.values["a"].version]
    assert outcomes[2] == [store.values["d"].version]


async def test_changes_of_one_key_are_made_one_after_the_other(autojump_clock: MockClock) -> None:
    store = SlowStore()
    changes = [[Put("a", b"1", ABSENT)], [Put("a", b"2", ABSENT)]]
    outcomes = await together(store, changes)
    assert isinstance(outcomes[0], list)
    assert isinstance(outcomes[1], VersionConflict)
    assert store.values["a"].value == b"1"


async def test_what_does_not_fit_one_transaction_comes_in_several(
    autojump_clock: MockClock,
) -> None:
    store = SlowStore()
    changes = [[Put(f"{n}-{m}", b"") for m in range(100)] for n in range(5)]
    changes.append([Put("large", bytes(VALUE_SIZE_MAX))])
    changes.append([Put("larger", bytes(VALUE_SIZE_MAX))])
    await together(store, changes)
    assert len(store.values) == 503
    assert max(store.sent) <= OPS_MAX
    assert len(store.sent) == 5


async def test_without_an_answer_every_outcome_is_unknown(autojump_clock: MockClock) -> None:
    store = SlowStore()
    async with trio.open_nursery() as nursery:

        async def go_away() -> None:
            await trio.sleep(1.5)
            store.available = False

        nursery.start_soon(go_away)
        outcomes = await together(store, [[Put(f"a{n}", b"1", ABSENT)] for n in range(3)])
    assert all(isinstance(outcome, MetadataUnavailable) for outcome in outcomes)
    assert store.sent == [1, 3]


@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_a_task_that_is_cancelled_takes_no_other_change_with_it(
    autojump_clock: MockClock, cancelled: int
) -> None:
    """One of these tasks makes the transaction for all three."""
    store = SlowStore()
    changes = [[Put(f"a{n}", b"1", ABSENT)] for n in range(3)]
    outcomes = await together(store, changes, cancelled=cancelled)
    assert [outcome is None for outcome in outcomes] == [n == cancelled for n in range(3)]
    others = {f"a{n}" for n in range(3) if n != cancelled}
    assert others <= store.values.keys()
