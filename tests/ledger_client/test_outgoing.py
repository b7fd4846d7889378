from __future__ import annotations

import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client.outgoing import CHUNK_SIZE, Outgoing

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 3), st.sampled_from([1, 100, CHUNK_SIZE + 1])),
        st.tuples(st.just("take"), st.just(0), st.just(0)),
        st.tuples(st.just("revoke"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_buffers_leave_whole_in_order_and_are_counted(plan: list[tuple[str, int, int]]) -> None:
    async def follow_plan() -> None:
        outgoing = Outgoing(1000)
        model: list[tuple[int, bytes]] = []
        for number, (step, owner, size) in enumerate(plan):
            if step == "put":
                buffer = bytes([number]) * size
                outgoing.put(owner, buffer)
                model.append((owner, buffer))
            elif step == "take" and model:
                taken = bytes(await outgoing.take())
                outgoing.sent(len(taken))
                while taken:
                    _, first = model.pop(0)
                    assert taken.startswith(first)
                    taken = taken[len(first) :]
            elif step == "revoke":
                outgoing.revoke(owner)
                model = [pair for pair in model if pair[0] != owner]
            elif step == "clear":
                outgoing.clear()
                model.clear()
            assert outgoing.size == sum(len(buffer) for _, buffer in model)
            assert outgoing.full == (outgoing.size >= 1000)

    trio.run(follow_plan)


async def test_who_waits_for_room_goes_on_when_enough_was_sent_or_revoked(
    autojump_clock: MockClock,
) -> None:
    for way in ("sent", "revoked", "cleared"):
        outgoing = Outgoing(1000)
        outgoing.put(1, bytes(1500))
        waited = trio.Event()

        async def wait(queue: Outgoing = outgoing, done: trio.Event = waited) -> None:
            await queue.wait_room()
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert not waited.is_set()
            if way == "sent":
                outgoing.sent(900)
            elif way == "revoked":
                outgoing.revoke(1)
            else:
                outgoing.clear()
            await wait_all_tasks_blocked()
            assert waited.is_set()
