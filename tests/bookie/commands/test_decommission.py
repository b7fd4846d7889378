from __future__ import annotations

from pathlib import Path

import pytest
import trio
from command import Command

from ledger_client.cluster.operations import drain
from metadata.outcome import Exit
from metadata.records import (
    CookieRecord,
    Fragment,
    LedgerRecord,
    LedgerState,
    cookie_key,
    draining_key,
    encode_record,
    ledger_key,
)
from metadata.store import Versioned
from metadata.urls import open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The metadata of two dead bookies, of which one holds an open ledger."""
    url = f"sqlite://{tmp_path}/metadata.db"

    async def fill() -> None:
        ledger = LedgerRecord(7, 1, 1, 1, LedgerState.OPEN, [Fragment(0, ["b1"])])
        async with open_store(url) as store:
            for name in ("b1", "b2"):
                cookie = CookieRecord(name, "i", "/journal", "/ledgers", "c")
                await store.put(cookie_key(name), encode_record(cookie))
            await store.put(ledger_key(7), encode_record(ledger))

    trio.run(fill)
    return url


def stored(url: str, key: str) -> Versioned | None:
    async def get() -> Versioned | None:
        async with open_store(url) as store:
            return await store.get(key)

    return trio.run(get)


def test_an_empty_bookie_goes_at_once(command: Command, url: str) -> None:
    told = command("decommission", "b2", "--cluster", url, "--json")
    assert told.code == Exit.DONE, told.err
    assert told.json == [{"bookie_id": "b2", "ledgers": 0, "size": 0, "cancelled": False}]
    assert stored(url, cookie_key("b2")) is None
    assert stored(url, draining_key("b2")) is None
    again = command("decommission", "b2", "--cluster", url)
    assert again.code == Exit.FAILED
    assert again.err.splitlines() == [
        "bookie: no bookie b2 is known; `quire cluster status` lists them"
    ]


def test_it_is_refused_where_nobody_can_take_a_copy(command: Command, url: str) -> None:
    told = command("decommission", "b1", "--cluster", url)
    assert told.code == Exit.FAILED
    (line,) = told.err.splitlines()
    assert "without bookie b1, 0 take copies, and ledger 7 needs 1" in line
    assert stored(url, draining_key("b1")) is None
    assert stored(url, cookie_key("b1")) is not None


def test_there_is_nothing_to_take_back_of_a_bookie_that_stays(command: Command, url: str) -> None:
    told = command("decommission", "b1", "--cluster", url, "--cancel")
    assert told.code == Exit.FAILED
    assert "b1 is not being decommissioned" in told.err


def test_to_wait_and_to_take_it_back_exclude_each_other(command: Command, url: str) -> None:
    told = command("decommission", "b1", "--cluster", url, "--wait", "--cancel")
    assert told.code == Exit.USAGE


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("check_room", "interrupted; `quire cluster status` shows whether b2 drains"),
        ("_wait_until_copied", "b2 goes on draining; --cancel takes that back, the same command"),
    ],
)
def test_an_interruption_says_that_the_bookie_drains_only_if_it_does(
    command: Command, url: str, monkeypatch: pytest.MonkeyPatch, step: str, said: str
) -> None:
    monkeypatch.setattr(drain, step, interrupt)
    told = command("decommission", "b2", "--cluster", url)
    assert told.code == Exit.INTERRUPTED
    assert said in told.err
    assert told.err.count("drain") == 1
    assert (stored(url, draining_key("b2")) is None) == said.startswith("interrupted")
    monkeypatch.setattr(drain, "cancel", interrupt)
    taken_back = command("decommission", "b2", "--cluster", url, "--cancel")
    assert "shows whether b2 drains" in taken_back.err
