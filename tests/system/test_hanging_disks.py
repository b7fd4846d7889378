"""Bookies, as processes, whose disk hangs in fdatasync or is slow.

What is asserted are events, never how soon they come: the machine may be busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import slow_disk
import trio
import v2
from daemons import DEADLINE_S, Daemon
from fleet import Fleet
from rig import Peer

import ledger_client
from bookie.commands.run import BookieStarted
from bookie.foreign import FREE_FROM
from ledger_client import Client, LedgerWriter
from metadata.records import BookieRecord

POLL_S = 0.05


@pytest.fixture
def preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", slow_disk.build(tmp_path))


@pytest.fixture
def fleet(tmp_path: Path, preloaded: None) -> Iterator[Fleet]:
    with Fleet(tmp_path, 4) as started:
        yield started


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - other processes set no event here
            await trio.sleep(POLL_S)


class Load:
    """Messages to a topic, one after the other."""

    def __init__(self) -> None:
        self.sent = 0

    async def run(self, client: Client) -> None:
        async with client.producer("t/t") as producer:
            while True:
                await producer.send(b"%d" % self.sent)
                self.sent += 1

    async def go_on(self, count: int) -> None:
        goal = self.sent + count
        await until(lambda: self.sent >= goal)


async def record_of(client: Client, name: str) -> BookieRecord:
    return next(each for each in await client.cluster.bookies() if each.bookie_id == name)


async def stalls(client: Client, name: str, expected: bool) -> None:
    """Return once the bookie's registration says that its disk hangs, or that it does not."""
    with trio.fail_after(DEADLINE_S):
        while (await record_of(client, name)).stalled is not expected:  # noqa: ASYNC110 - as above
            await trio.sleep(POLL_S)


@pytest.mark.slow
async def test_a_disk_that_hangs_stops_neither_writers_nor_recovery(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The bookie answers, holds its lease, and acknowledges nothing; all others go on."""
    load = Load()
    async with ledger_client.connect(fleet.metadata) as client:
        await client.topics.create("t/t")
        async with (
            client.ledgers.create(4, 4, 3) as left_open,
            client.ledgers.create(3, 3, 3) as ledger,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(load.run, client)
            await load.go_on(20)
            await left_open.append_many([b"x"] * 10)
            await ledger.append(b"before")
            stalled = ledger.metadata.fragments[-1].bookies[0]
            slow_disk.hang(tmp_path / stalled)

            with trio.fail_after(DEADLINE_S):  # Qa = Qw: nothing is acknowledged without it
                await ledger.append(b"after")
            assert stalled not in ledger.metadata.fragments[-1].bookies
            await load.go_on(200)

            await stalls(client, stalled, True)
            assert (await record_of(client, stalled)).read_only
            for _ in range(8):
                async with client.ledgers.create(2, 2, 2) as fresh:
                    assert stalled not in fresh.metadata.fragments[0].bookies

            with trio.fail_after(DEADLINE_S):
                record = await client.ledgers.recover(left_open.id)
            assert record.last_entry == 9

            slow_disk.heal(tmp_path / stalled)
            await stalls(client, stalled, False)
            nursery.cancel_scope.cancel()
    assert fleet.runs(fleet.number(stalled))


@pytest.mark.slow
async def test_a_disk_with_slow_syncs_is_kept_under_full_load(fleet: Fleet, tmp_path: Path) -> None:
    """Each sync takes 300 ms; the memtables fill, and adds wait for flushes."""
    payload = bytes(64 << 10)
    async with (
        ledger_client.connect(fleet.metadata) as client,
        client.ledgers.create(3, 3, 3) as ledger,
        trio.open_nursery() as nursery,
    ):
        slow_disk.delay(tmp_path / ledger.metadata.fragments[0].bookies[0], 300)
        for _ in range(8):
            nursery.start_soon(append_all, ledger, [payload] * 80)
    assert len(ledger.metadata.fragments) == 1
    assert ledger.last_confirmed == 8 * 80 - 1


async def append_all(ledger: LedgerWriter, payloads: list[bytes]) -> None:
    await ledger.append_many(payloads)


# The limit is lowered where it stands, as a minute is too long for a test.
IMPATIENT = (
    "import bookie.stall; bookie.stall.END_S = 3.0; from bookie.command_line import main; main()"
)


@pytest.mark.slow
async def test_a_bookie_whose_disk_hangs_for_good_ends_although_a_thread_hangs(
    tmp_path: Path, preloaded: None
) -> None:
    data, log = tmp_path / "b", tmp_path / "log"
    words = ("run", "--json", "--port", 0, "--data", data)
    with Daemon(*words, log=log, program=["-c", IMPATIENT]) as daemon:
        told = await trio.to_thread.run_sync(daemon.ready, BookieStarted)
        slow_disk.hang(data)
        host, _, port = told.address.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(v2.add(FREE_FROM, 0))
            with suppress(trio.BrokenResourceError):
                assert await Peer(stream).closed()  # without an acknowledgement
        code = await trio.to_thread.run_sync(daemon.process.wait, DEADLINE_S)
    assert code == 1
    assert "the journal in" in daemon.log
    assert "made no progress for 3 s; the bookie ends" in daemon.log
