"""Waits that a command explains, on a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from ledger_client import NoSuchTopic
from ledger_client.__main__ import quire
from ledger_client.commands.outcome import conclude
from ledger_client.commands.patience import SAID_S, Patience
from metadata.outcome import Exit


async def fail_late(*_arguments: object, **_options: object) -> None:
    await trio.sleep(SAID_S * 5)
    raise NoSuchTopic("t/x")


@asynccontextmanager
async def open_late(*_arguments: object, **_options: object) -> AsyncIterator[None]:
    await fail_late()
    yield


@asynccontextmanager
async def slow_cluster(_url: str) -> AsyncIterator[SimpleNamespace]:
    """A client whose calls take long, and fail."""
    calls = ("explain", "info", "roll", "compact", "state")
    topics = SimpleNamespace(**dict.fromkeys(calls, fail_late))
    yield SimpleNamespace(topics=topics, reader=open_late, metrics=None, _context=None)


async def test_a_long_wait_is_explained_once(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    patience = Patience("waiting for bread; the oven may be off")
    with patience.waiting():
        await trio.sleep(SAID_S * 0.9)
    await trio.sleep(SAID_S)
    assert capsys.readouterr().err == "", "short waits are not added up"
    for _ in range(2):
        with patience.waiting():
            await trio.sleep(SAID_S * 1.1)
    assert capsys.readouterr().err == "quire: waiting for bread; the oven may be off\n"


async def test_an_error_of_the_wait_comes_out_as_it_is(autojump_clock: MockClock) -> None:
    with pytest.raises(KeyError), Patience("x").waiting():
        raise KeyError


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        ("topic.describe", "topic describe t/x", "waiting for the bookies of t/x; `quire"),
        ("topic.describe", "topic explain t/x", "waiting for the bookies of t/x; `quire"),
        ("topic.rolls", "topic roll t/x", "still waiting for each producer of t/x to go on"),
        ("compact", "compact t/x --no-spark", "still compacting t/x\n"),
        ("scrub", "scrub --topic t/x --no-spark", "still comparing copies\n"),
        ("read", "read t/x --as-of 5", "waiting for messages of t/x; `quire"),
        ("read", "read t/x --latest", "waiting for messages of t/x; `quire"),
    ],
)
def test_a_command_in_a_pipe_says_what_it_waits_for(
    module: str,
    words: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once, and before its error."""
    monkeypatch.setattr(f"ledger_client.commands.{module}.connect", slow_cluster)
    monkeypatch.setattr(trio, "run", partial(trio.run, clock=MockClock(autojump_threshold=0)))
    assert conclude(quire, [*words.split(), "--cluster", "bookie://h:1"]) == Exit.FAILED
    printed = capsys.readouterr().err
    assert printed.startswith(f"quire: {said}")
    assert printed.count("\n") == 2
