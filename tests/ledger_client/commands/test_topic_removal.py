"""What `quire topic delete` says after an interruption."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from ledger_client.__main__ import quire
from ledger_client.commands.outcome import conclude
from ledger_client.commands.topic import removal
from ledger_client.errors import MetadataUnavailable
from ledger_client.topics.catalogue import TopicCatalogue
from metadata.outcome import Exit
from metadata.topics import TopicRecord
from metadata.urls import open_store

Work = Callable[[], Awaitable[None]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite://{tmp_path}/metadata.db"

    async def fill() -> None:
        async with open_store(url) as store:
            await TopicCatalogue(store, timeout_s=5).create(TopicRecord(name="s/t", uid=0))

    trio.run(fill)
    return url


async def before(_: Work) -> bool:
    return True


async def after(work: Work) -> bool:
    await work()
    return True


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("before", "interrupted; topic s/t is still there"),
        ("within", "interrupted; 0 ledgers removed, the leader will remove the rest"),
        ("after", "interrupted; there is no topic s/t any more"),
        ("in an outage", "interrupted; 0 ledgers removed. `quire topic describe s/t` shows"),
    ],
)
def test_an_interruption_says_how_far_the_deletion_came(
    url: str,
    point: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def within(_: Work) -> bool:
        async with open_store(url) as store:
            await TopicCatalogue(store, timeout_s=5).mark_deleting("s/t")
        return True

    async def nobody(*_: object) -> None:
        raise MetadataUnavailable("nobody answers")

    async def in_an_outage(_: Work) -> bool:
        monkeypatch.setattr(TopicCatalogue, "find", nobody)
        return True

    cuts = {"before": before, "within": within, "after": after, "in an outage": in_an_outage}
    monkeypatch.setattr(removal, "interrupted", cuts[point])
    code = conclude(quire, ["topic", "delete", "s/t", "--yes", "--cluster", url])
    assert code == Exit.INTERRUPTED
    assert capsys.readouterr().err.splitlines()[0].startswith(said)
