"""The call that reports all quiet ledgers of a client, on the client's side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from ledger_client.errors import BookieUnavailable
from ledger_client.wire.followed import REFUSED_S, FollowedLedgers
from ledger_client.wire.inflight import Reply
from metadata import calls
from metadata.calls import AwaitLedgers, LedgersMoved, encode_reply
from native import frame
from native.frame import Code, Opcode
from native.link import Response


class Connection:
    """A connection whose responses a test makes."""

    def __init__(self) -> None:
        self.asked: list[tuple[AwaitLedgers, Reply]] = []
        self.suspected = 0
        self.is_down = False

    def next_request_id(self) -> int:
        return len(self.asked) + 1

    def ask(self, request: bytes, key: int, on_arrival: Callable[[], None]) -> Reply:
        assert key == len(self.asked) + 1
        reply = Reply("b1", on_arrival)
        decoded = calls.decode_request(frame.parse_request(request).body)
        assert isinstance(decoded, AwaitLedgers)
        self.asked.append((decoded, reply))
        if self.is_down:
            reply.fail(BookieUnavailable("b1", "down"))
        return reply

    def suspect(self, _since: float) -> None:
        self.suspected += 1

    def answer(self, number: int, answer: calls.Reply) -> None:
        self.asked[number][1].resolve(response(encode_reply(answer)))


def response(body: bytes) -> Response:
    return Response(
        opcode=Opcode.CALL,
        code=Code.OK,
        ledger_id=-1,
        entry_id=-1,
        request_id=1,
        lac=-1,
        fenced=False,
        body=body,
    )


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def followed(connection: Connection, nursery: trio.Nursery) -> FollowedLedgers:
    return FollowedLedgers(connection, nursery)


async def test_a_thousand_ledgers_are_one_message_and_one_task(
    autojump_clock: MockClock, followed: FollowedLedgers, connection: Connection
) -> None:
    woken: list[int] = []
    tasks = trio.lowlevel.current_statistics().tasks_living
    for number in range(1000):
        followed.follow(number, 5, partial(woken.append, number))
    await trio.sleep(1)
    assert len(connection.asked) == 1
    assert len(connection.asked[0][0].add) == 1000
    assert trio.lowlevel.current_statistics().tasks_living == tasks + 1
    connection.answer(0, LedgersMoved([3, 7, 12345]))
    await trio.sleep(1)
    assert woken == [3, 7]
    request, _ = connection.asked[1]
    assert (request.add, request.drop) == ([], [])


async def test_what_is_followed_no_longer_is_dropped_with_the_next_message(
    autojump_clock: MockClock, followed: FollowedLedgers, connection: Connection
) -> None:
    woken: list[int] = []
    wakes = [partial(woken.append, number) for number in range(3)]
    for number, wake in enumerate(wakes):
        followed.follow(number, -1, wake)
    await trio.sleep(1)
    followed.leave(1, wakes[1])
    followed.leave(1, wakes[1])
    await trio.sleep(1)
    assert len(connection.asked) == 1
    connection.answer(0, LedgersMoved([1]))
    await trio.sleep(1)
    assert connection.asked[1][0].drop == [1]
    followed.follow(1, 4, wakes[1])
    await trio.sleep(1)
    assert connection.asked[2][0].add == [calls.FollowedLedger(1, 4)]
    connection.answer(1, LedgersMoved([]))
    connection.answer(2, LedgersMoved([1]))
    assert woken == [1]


async def test_an_answer_to_an_earlier_call_is_heard_too(
    autojump_clock: MockClock, followed: FollowedLedgers, connection: Connection
) -> None:
    woken: list[int] = []
    followed.follow(1, -1, partial(woken.append, 1))
    await trio.sleep(1)
    followed.follow(2, -1, partial(woken.append, 2))
    await trio.sleep(1)
    connection.answer(0, LedgersMoved([1]))
    assert woken == [1]


async def test_two_followers_of_a_ledger_hear_of_what_the_one_behind_lacks(
    autojump_clock: MockClock, followed: FollowedLedgers, connection: Connection
) -> None:
    woken: list[str] = []
    followed.follow(1, 3, partial(woken.append, "behind"))
    followed.follow(1, 8, partial(woken.append, "ahead"))
    await trio.sleep(1)
    assert connection.asked[0][0].add == [calls.FollowedLedger(1, 3)]
    connection.answer(0, LedgersMoved([1]))
    assert woken == ["behind", "ahead"]


async def test_a_lost_connection_and_a_refusal_wake_all(
    autojump_clock: MockClock, followed: FollowedLedgers, connection: Connection
) -> None:
    woken: list[int] = []
    for number in (1, 2):
        followed.follow(number, -1, partial(woken.append, number))
    await trio.sleep(1)
    connection.asked[0][1].fail(BookieUnavailable("b1", "lost"))
    assert woken == [1, 2]
    await trio.sleep(1)
    followed.follow(3, -1, partial(woken.append, 3))
    await trio.sleep(1)
    connection.answer(1, calls.Failure("CallRefused", "too many"))
    assert woken == [1, 2, 3]
    takes = [followed.takes]
    await trio.sleep(REFUSED_S + 1)
    assert [*takes, followed.takes] == [False, True]
    connection.is_down = True
    followed.follow(4, -1, partial(woken.append, 4))
    await trio.sleep(1)
    assert woken == [1, 2, 3, 4]


async def test_a_bookie_that_hangs_is_suspected_and_nobody_waits_for_it(
    autojump_clock: MockClock, followed: FollowedLedgers, connection: Connection
) -> None:
    woken: list[int] = []
    followed.follow(1, -1, partial(woken.append, 1))
    await trio.sleep(13)
    assert woken == [1]
    assert connection.suspected == 1
