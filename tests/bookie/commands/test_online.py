"""``bookie gc`` and ``bookie inspect --address``: what is asked of a running bookie."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from command import Command
from daemons import Daemon

import ledger_client
from bookie.commands import gc
from bookie.commands.call import RemoteBookie, locate, open_remote
from bookie.commands.run import BookieStarted
from metadata.calls import FlushNow, JournalState
from metadata.errors import AccessDenied, MetadataError
from metadata.outcome import Exit
from metadata.records import BookieRecord

LEDGERS = 3

# One bookie serves them all: in one process, which starts it once.
pytestmark = pytest.mark.xdist_group("online")


@pytest.fixture(scope="module")
def bookie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookieStarted]:
    """A bookie with three ledgers of ten entries, the second of them deleted."""
    folder = tmp_path_factory.mktemp("bookie")
    small = ["--set", "memtable_size=12MiB", "--set", "disk_reserve=0", "--json"]
    with Daemon("run", "--data", folder, "--port", 0, *small, log=folder / "log") as daemon:
        ready = daemon.ready(BookieStarted)
        trio.run(fill, ready.ready)
        yield ready
        assert daemon.stop() == 0


async def fill(url: str) -> None:
    async with ledger_client.connect(url) as client:
        for _ in range(LEDGERS):
            async with client.ledgers.create(
                ensemble_size=1, write_quorum=1, ack_quorum=1
            ) as ledger:
                await ledger.append_many([b"entry %d" % number for number in range(10)])
        await client.ledgers.delete(2)


def test_inspect_ledger_lists_those_of_a_running_bookie(
    command: Command, bookie: BookieStarted
) -> None:
    told = command("inspect", "ledger", "--address", bookie.address, "--json")
    assert {row["ledger_id"] for row in told.json} >= {1, 3}
    assert "confirmed" in command("inspect", "ledger", "1", "--address", bookie.address).out
    assert command("inspect", "ledger", "99", "--address", bookie.address).code == Exit.FAILED


def test_inspect_entry_reads_from_a_running_bookie(command: Command, bookie: BookieStarted) -> None:
    told = command("inspect", "entry", "1", "3", "--address", bookie.address)
    assert told.code == Exit.DONE, told.err
    assert "|entry 3|" in told.out
    assert "right" in told.out
    told = command("inspect", "entry", "1", "10", "--address", bookie.address)
    assert told.code == Exit.FAILED
    assert "NO_ENTRY" in told.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("ledger", str(1 << 64)),
        ("entry", "1", str(1 << 64)),
        ("journal", "1", "--from", str(1 << 64)),
        ("journal", "1", "--ledger", str(1 << 64)),
        ("journal", "f" * 17),
        ("index", "f" * 17),
        ("index", "1", "--ledger", str(1 << 64)),
    ],
    ids=" ".join,
)
def test_numbers_that_are_too_large_are_refused_in_words(
    command: Command, bookie: BookieStarted, arguments: tuple[str, ...]
) -> None:
    told = command("inspect", *arguments, "--address", bookie.address)
    assert told.code in {Exit.FAILED, Exit.USAGE}
    assert told.err.count("\n") == 1


def test_inspect_mark_asks_a_running_bookie(command: Command, bookie: BookieStarted) -> None:
    (told,) = command("inspect", "mark", "--address", bookie.address, "--json").json
    assert isinstance(told["journal_end"], int)
    assert told["journal_end"] > 4096


def test_inspect_journal_shows_the_records_of_a_running_bookie(
    command: Command, bookie: BookieStarted
) -> None:
    """Files first, then one of them, page by page; with --limit no more than wanted."""
    told = command("inspect", "journal", "--address", bookie.address, "--json")
    assert told.code == Exit.DONE, told.err
    row = told.json[-1]
    assert (row["needed"], row["end"]) == (True, 0)
    name = f"{row['id']:x}"
    told = command("inspect", "journal", name, "--address", bookie.address, "--json")
    assert told.code == Exit.DONE, told.err
    *lines, last = told.json
    assert sum(line["kind"] == "entry" for line in lines) == 10 * LEDGERS
    assert isinstance(last["end"], int)
    own = [line for line in lines if line["ledger_id"] == 1 and line["kind"] == "entry"]
    assert [line["entry_id"] for line in own] == list(range(10))
    few = command(
        "inspect", "journal", name, "--address", bookie.address, "--json",
        "--ledger", 1, "--limit", 3,
    )  # fmt: skip
    assert [line["ledger_id"] for line in few.json] == [1, 1, 1]
    text = command("inspect", "journal", name, "--address", bookie.address).out
    assert "key" in text
    refused = command("inspect", "journal", "ffff", "--address", bookie.address)
    assert (refused.code, "is not here" in refused.err) == (Exit.FAILED, True)
    assert command("inspect", "journal", "x!", "--address", bookie.address).code == Exit.FAILED


def test_inspect_index_shows_the_extents_of_a_running_bookie(
    command: Command, bookie: BookieStarted
) -> None:
    async def flush() -> None:
        async with open_remote(*locate(bookie.address)) as remote:
            await remote.ask(FlushNow(), JournalState)

    trio.run(flush)
    told = command("inspect", "index", "--address", bookie.address, "--json")
    assert told.code == Exit.DONE, told.err
    rows = [row for row in told.json if row["entries"]]
    assert rows
    name = f"{rows[0]['log_id']:x}"
    told = command("inspect", "index", name, "--address", bookie.address, "--json", "--ledger", 1)
    assert told.code == Exit.DONE, told.err
    assert [(row["first_entry"], row["last_entry"]) for row in told.json] == [(0, 9)]
    text = command("inspect", "index", name, "--address", bookie.address, "--limit", 1).out
    assert len(text.splitlines()) == 2
    refused = command("inspect", "index", "ffff", "--address", bookie.address)
    assert (refused.code, "is not here" in refused.err) == (Exit.FAILED, True)


def test_gc_frees_a_deleted_ledger(command: Command, bookie: BookieStarted) -> None:
    told = command("gc", "--cluster", bookie.ready, "--json")
    assert told.code == Exit.DONE, told.err
    (row,) = told.json
    assert row["bookie_id"] == bookie.bookie_id
    listed = command("inspect", "ledger", "--address", bookie.address, "--json")
    assert [state["ledger_id"] for state in listed.json] == [1, 3]
    assert command("gc", "--major", "--cluster", bookie.ready).code == Exit.DONE
    logs = command("inspect", "log", "--address", bookie.address, "--json").json
    assert all(isinstance(row["live"], int) for row in logs)


@pytest.mark.parametrize(
    "refusal", [MetadataError("its disk is full"), AccessDenied("bob: wrong password")]
)
def test_a_bookie_that_refuses_a_collection_stops_no_other_one(
    command: Command,
    bookie: BookieStarted,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Exception,
) -> None:
    """Two names for one bookie, which answers under one of them."""
    ask = RemoteBookie.ask

    async def refuse(*_: object, wait_s: float) -> object:
        monkeypatch.setattr(RemoteBookie, "ask", ask)
        raise refusal

    async def serving(_cluster: str) -> list[BookieRecord]:
        return [BookieRecord(name, bookie.address, 10, 10) for name in ("b1", "b2")]

    monkeypatch.setattr(RemoteBookie, "ask", refuse)
    monkeypatch.setattr(gc, "_serving", serving)
    told = command("gc", "--cluster", bookie.ready, "--json")
    assert told.code == Exit.FAILED
    assert str(refusal) in told.err
    assert {row["error"] for row in told.json} == {"", str(refusal)}
    assert {row["error"] for row in told.json if row["report"] is not None} == {""}


def test_gc_of_a_bookie_that_is_not_there_fails(command: Command, bookie: BookieStarted) -> None:
    told = command("gc", "--cluster", bookie.ready, "--bookie", "nobody")
    assert told.code == Exit.FAILED
    assert "nobody" in told.err


def test_records_are_read_from_files_only(command: Command, bookie: BookieStarted) -> None:
    told = command("inspect", "log", "1", "--address", bookie.address)
    assert told.code == Exit.USAGE
