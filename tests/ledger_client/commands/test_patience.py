"""Waits that a command explains, on a virtual clock."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledger_client.commands.patience import SAID_S, Patience


async def test_a_long_wait_is_explained_once(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    patience = Patience("bread", "the oven may be off")
    with patience.waiting():
        await trio.sleep(SAID_S * 0.9)
    await trio.sleep(SAID_S)
    assert capsys.readouterr().err == "", "short waits are not added up"
    for _ in range(2):
        with patience.waiting():
            await trio.sleep(SAID_S * 1.1)
    assert capsys.readouterr().err == "quire: waiting for bread; the oven may be off\n"


async def test_an_error_of_the_wait_comes_out_as_it_is(autojump_clock: MockClock) -> None:
    with pytest.raises(KeyError), Patience("x", "y").waiting():
        raise KeyError
