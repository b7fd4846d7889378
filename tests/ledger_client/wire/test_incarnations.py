"""What clients say of the ledgers that they mean."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
import trio
from memory_bookie import MemoryBookie
from memory_cluster import MemoryCluster, memory_cluster
from trio.testing import MockClock

from ledger_client import Client, Options
from ledger_client.cluster.repair.copier import deliver
from ledger_client.errors import LedgerError
from ledger_client.wire.inflight import LedgerName
from ledger_client.wire.session import Attached, Session
from metadata.records import encode_record, ledger_key
from native import frame
from native.digest import Digest
from native.frame import Code, Opcode, Request
from native.link import Writer

ABOUT_A_LEDGER = {
    Opcode.ADD,
    Opcode.READ,
    Opcode.BATCH_READ,
    Opcode.READ_WAIT,
    Opcode.WRITE_LAC,
}


def meant(cluster: MemoryCluster, ledger_id: int) -> set[tuple[int, int]]:
    """Opcodes of the requests about a ledger, each with the incarnation that it was about."""
    return {
        (request.opcode, incarnation)
        for bookie in cluster.bookies.values()
        for request, incarnation in bookie.meant
        if request.opcode in ABOUT_A_LEDGER and request.ledger_id == ledger_id
    }


async def write(client: Client, ensemble: int, ledger_id: int) -> None:
    async with client.ledgers.create(ensemble, 2, 2, ledger_id=ledger_id) as ledger:
        await ledger.append_many([b"%d" % i for i in range(9)])
        await trio.sleep(5.0)  # time to tell what is confirmed


@pytest.mark.parametrize("ensemble", [2, 3])
async def test_every_question_says_which_ledger_it_means(
    autojump_clock: MockClock, ensemble: int
) -> None:
    options = Options(explicit_lac_s=1.0)
    async with memory_cluster(3) as cluster, cluster.client(options) as client:
        await write(client, ensemble, 7)
        async with client.ledgers.open(7) as ledger:
            assert len(await ledger.read(0, 8)) == 9
        async with client.ledgers.create(ensemble, 2, 2, ledger_id=8) as growing:
            await growing.append(b"x")
            async with client.ledgers.open(8, recover=False) as ledger:
                with trio.move_on_after(3.0):
                    async for _ in ledger.follow():
                        pass
        for ledger_id in (7, 8):
            incarnation = cluster.record(ledger_id).incarnation
            assert incarnation > 0
            found = meant(cluster, ledger_id)
            assert {number for _, number in found} == {incarnation}, found
        read = Opcode.READ if ensemble == 3 else Opcode.BATCH_READ
        assert {opcode for opcode, _ in meant(cluster, 7)} >= {Opcode.ADD, Opcode.WRITE_LAC, read}
        assert Opcode.READ_WAIT in {opcode for opcode, _ in meant(cluster, 8)}


async def test_recovery_says_which_ledger_it_means(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as writing:
        with suppress(LedgerError):
            async with writing.ledgers.create(3, 3, 2, ledger_id=7) as ledger:
                await ledger.append_many([b"a", b"b"])
                for bookie in cluster.bookies.values():
                    bookie.meant.clear()
                async with cluster.client() as other:
                    assert (await other.ledgers.recover(7)).last_entry == 1
                found = meant(cluster, 7)
        incarnation = cluster.record(7).incarnation
        assert found == {
            (Opcode.READ, incarnation),
            (Opcode.BATCH_READ, incarnation),
            (Opcode.ADD, incarnation),
        }


async def test_a_copy_says_which_ledger_it_means(autojump_clock: MockClock) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        await write(client, 2, 7)
        async with client.ledgers.open(7) as ledger:
            batches = [batch async for batch in ledger.read_batches(0, 8)]
        name = LedgerName(7, cluster.record(7).incarnation)
        (target,) = cluster.bookies.keys() - {*cluster.record(7).fragments[0].bookies}
        await deliver(
            client._context.ledgers.bookies.connections[target],
            batches,
            Digest(),
            name=name,
            mends=False,
            token=client._context.ledgers.bookies.new_token(),
            timeout_s=5.0,
        )
        assert {number for _, number in cluster.bookies[target].meant if _.ledger_id == 7} == {
            name.incarnation
        }
        assert len(cluster.bookies[target].entries(7)) == 9


async def test_a_bookie_in_doubt_is_told_again(autojump_clock: MockClock) -> None:
    doubtful: list[Request] = []

    def doubts(request: Request) -> int:
        doubtful.append(request)
        return Code.UNKNOWN_STATE if len(doubtful) == 1 else Code.OK

    async with memory_cluster(1) as cluster, cluster.client() as client:
        async with client.ledgers.create(1, 1, 1, ledger_id=7) as ledger:
            await ledger.append(b"x")
        bookie = cluster.bookies["b1"]
        name = (7, cluster.record(7).incarnation)
        async with client.ledgers.open(7) as reader:
            assert len(await reader.read(0, 0)) == 1
            bookie.statements.clear()
            bookie.read_fault = doubts
            (entry,) = await reader.read(0, 0)
            assert entry.payload == b"x"
        assert bookie.statements == [(7, 0), name]


async def test_a_ledger_without_an_incarnation_is_not_spoken_of(autojump_clock: MockClock) -> None:
    """Somebody made it who does not know of them."""
    async with memory_cluster(2) as cluster, cluster.client() as client:
        await write(client, 2, 7)
        record = msgspec.structs.replace(cluster.record(7), incarnation=0)
        await cluster.store.put(ledger_key(7), encode_record(record))
        for bookie in cluster.bookies.values():
            bookie.statements.clear()
            bookie.meant.clear()
        async with cluster.client() as other, other.ledgers.open(7) as reader:
            assert len(await reader.read(0, 8)) == 9
        assert {number for _, number in meant(cluster, 7)} == {0}
        assert not any(n for bookie in cluster.bookies.values() for _, n in bookie.statements)


class Nobody:
    """Listens to nothing."""

    def acknowledged(self) -> None:
        pass

    def bookie_lost(self, index: int, failure: LedgerError) -> None:
        pass

    def bookie_left(self, index: int) -> None:
        pass


async def test_a_writer_is_meant_again_after_a_reader_of_another() -> None:
    """Its adds go out without a look at who said what."""
    session = Session(Options(send_timeout_s=1.0, bookie_timeout_s=1.0))
    writer = Writer(7, 1, 1, 1, Digest(), token=1)
    session.attach(1, Attached(writer, 0, Nobody(), LedgerName(7, 2)))
    session.ask(b"question", LedgerName(7, 1))
    session.send(1, b"adds")
    session.leave(1)
    session.ask(b"another", LedgerName(7, 2))
    sent = bytes(await session.outgoing.take())
    assert sent == b"".join(
        (
            frame.incarnation(7, 2),
            frame.incarnation(7, 1),
            b"question",
            frame.incarnation(7, 2),
            b"adds",
            frame.incarnation(7, 0),
            frame.incarnation(7, 2),
            b"another",
        )
    )
    writer.close()


@pytest.mark.parametrize("go", [Session.leave, Session.detach])
async def test_late_answers_do_not_count_for_the_next_ledger_with_the_id(
    go: Callable[[Session, int], None],
) -> None:
    """An answer to an add names ledger and entry, and nothing else."""
    session = Session(Options(send_timeout_s=1.0, bookie_timeout_s=1.0))
    former, other, following = (Writer(n, 1, 1, 1, Digest(), token=n) for n in (7, 8, 7))
    for token, writer in ((1, former), (2, other)):
        session.attach(token, Attached(writer, 0, Nobody(), LedgerName(6 + token, 1)))
    former.add([b"x"])
    for token in (1, 2):
        go(session, token)
    with pytest.raises(OSError, match="not answered"):
        session.attach(3, Attached(following, 0, Nobody(), LedgerName(7, 2)))
    session.attach(4, Attached(other, 0, Nobody(), LedgerName(8, 2)))  # nothing is under way
    session.attach(5, Attached(following, 0, Nobody(), LedgerName(7, 1)))  # who recovers it
    for writer in (former, other, following):
        writer.close()


async def test_a_slow_bookie_acknowledges_no_entry_of_a_ledger_that_it_has_not_got(
    autojump_clock: MockClock,
) -> None:
    """What it says of the former ledger arrives while entries of the new one are under way."""
    async with memory_cluster(2) as cluster, cluster.client() as client:
        slow = cluster.bookies["b2"]
        slow.holding = True
        async with client.ledgers.create(2, 2, 1, ledger_id=7) as former:
            await former.append(b"former")
        await client.ledgers.delete(7)
        for bookie in cluster.bookies.values():
            bookie.ledgers.clear()
        slow.holding = False
        slow.delay_s = lambda request: 0.5 if request.opcode == Opcode.ADD else 0.0
        async with (
            client.ledgers.create(2, 2, 2, ledger_id=7) as following,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_release_soon, slow)
            await following.append(b"following")
            assert [len(bookie.entries(7)) for bookie in cluster.bookies.values()] == [1, 1]


async def test_a_late_answer_about_the_former_ledger_reaches_nobody(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        bookie = cluster.bookies["b1"]
        bookie.delay_s = lambda request: 0.5 if request.opcode == Opcode.READ else 0.0
        connection = client._context.ledgers.bookies.connections["b1"]
        await connection.ready()
        dialled = len(cluster.dialled)
        read = frame.read(7, 3)
        arrived = trio.Event()
        connection.ask(read, (7, 3), lambda: None, LedgerName(7, 1)).abandon()
        connection.ask(read, (7, 3), lambda: None, LedgerName(7, 1))
        assert len(cluster.dialled) == dialled
        reply = connection.ask(read, (7, 3), arrived.set, LedgerName(7, 2))
        await arrived.wait()
        assert reply.response is not None
        assert len(cluster.dialled) == dialled + 1
        assert [incarnation for request, incarnation in bookie.meant if request.entry_id == 3][
            -1
        ] == 2


async def _release_soon(bookie: MemoryBookie) -> None:
    await trio.sleep(0.1)
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await bookie.release()
