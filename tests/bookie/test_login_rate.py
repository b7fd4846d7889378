"""How often passwords may be tried, on a clock that jumps."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bookie import login_rate
from bookie.errors import PeerAtFault
from bookie.login_rate import (
    ALL_BURST,
    ALL_INTERVAL_S,
    HOST_BURST,
    HOST_INTERVAL_S,
    WAIT_MAX_S,
    LoginRate,
    network_of,
)
from bookie.users import Users, secret_of, write_users
from metadata.access import Login


async def turns_within(rate: LoginRate, host: str, limit_s: float) -> int:
    taken = 0
    with trio.move_on_after(limit_s):
        while True:
            await rate.wait_turn(host)
            taken += 1
    return taken


async def test_one_host_has_a_burst_and_then_two_turns_a_second(autojump_clock: MockClock) -> None:
    taken = await turns_within(LoginRate(), "10.0.0.1", 20.1)
    assert taken == HOST_BURST + 20 / HOST_INTERVAL_S


async def test_a_host_that_asks_too_often_holds_nobody_else_up(autojump_clock: MockClock) -> None:
    rate = LoginRate()
    refused = 0

    async def guess() -> None:
        nonlocal refused
        try:
            await rate.wait_turn("10.0.0.1")
        except PeerAtFault:
            refused += 1

    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(guess)
        await trio.testing.wait_all_tasks_blocked()
        assert refused == 1000 - HOST_BURST - WAIT_MAX_S / HOST_INTERVAL_S
        started = trio.current_time()
        await rate.wait_turn("10.0.0.2")
        assert trio.current_time() - started < 2 * HOST_INTERVAL_S + ALL_INTERVAL_S * ALL_BURST


async def test_many_hosts_share_what_the_processor_can_do(autojump_clock: MockClock) -> None:
    rate, taken = LoginRate(), 0

    async def guess(number: int) -> None:
        nonlocal taken
        try:
            await rate.wait_turn(f"10.0.{number // 250}.{number % 250}")
        except PeerAtFault:
            return
        taken += 1

    async with trio.open_nursery() as nursery:
        for number in range(5000):
            nursery.start_soon(guess, number)
    assert taken == ALL_BURST + WAIT_MAX_S / ALL_INTERVAL_S


async def test_a_refused_turn_is_not_counted(autojump_clock: MockClock) -> None:
    rate = LoginRate()
    with trio.move_on_after(0):
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(rate.wait_turn, "10.0.0.1")
    for _ in range(100):
        with pytest.raises(PeerAtFault):
            await rate.wait_turn("10.0.0.1")
    await trio.sleep(HOST_INTERVAL_S)
    await rate.wait_turn("10.0.0.1")


async def test_memory_does_not_grow_with_the_number_of_hosts(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_rate, "_HOSTS_MAX", 50)
    rate = LoginRate()
    for number in range(200):
        await rate.wait_turn(f"10.0.0.{number}")
    assert len(rate._due) == 50


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::9", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_host_is_known_by_its_network(host: str, network: str) -> None:
    assert network_of(host) == network


async def test_guesses_are_not_hashed_once_there_are_too_many_and_known_logins_pass(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, path = Login("alice", "secret"), tmp_path / "users"
    write_users(path, {"alice": secret_of(alice)})
    users = Users(path)
    assert await users.admit(alice, "10.0.0.1")
    hashed = 0

    def count(_password: str, _salt: bytes) -> bytes:
        nonlocal hashed
        hashed += 1
        return bytes(32)

    monkeypatch.setattr("bookie.users._hash", count)
    refused = 0
    for number in range(200):
        with trio.move_on_after(0.001):
            try:
                assert not await users.admit(Login("alice", f"guess {number}"), "10.0.0.1")
            except PeerAtFault:
                refused += 1
    assert hashed < HOST_BURST
    assert refused > 0
    assert await users.admit(alice, "10.0.0.1"), "found right before"
