"""A cluster whose power is cut as a whole, and what must be there afterwards.

    with RecordedFleet(root, 3, SETTINGS, environment(root, trace)) as fleet:
        work(fleet, folder, seed)
    for cut in cuts(read(trace), seed, count=4):
        cut.lay(root)
        with Fleet(root, 3, SETTINGS) as fleet:
            trio.run(cut.promised.check, fleet)

The record of all processes is in one order, so a place in it is one moment of the cluster:
what each disk, the metadata's among them, may hold then, and what clients were promised.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio
import v2
from cluster_worker import PATIENCE, PRODUCER, TOPIC, message, payload
from daemons import DEADLINE_S, Daemon
from fleet import Fleet
from never_twice import never_twice
from power_cut import Disk, Kind, Record

import ledger_client
from ledger_client import Client
from metadata.address import parse_address
from metadata.records import LedgerState
from native.frame import Code

WORKER = Path(__file__).with_name("cluster_worker.py")
# Frequent checkpoints, so that cuts fall into them; nothing that repairs by itself.
SETTINGS = (
    "memtable_size=10MiB",
    "journal_size_max=1MiB",
    "log_size_max=1MiB",
    "checkpoint_interval_s=0.3",
    "disk_reserve=0",
    "autorecovery=false",
)
_NAMING = {Kind.CREATE, Kind.RENAME, Kind.UNLINK, Kind.MKDIR, Kind.LINK}


class RecordedFleet(Fleet):
    """Bookies whose record makes a Disk."""

    def start_all(self) -> None:
        """Start the first one alone: it makes the metadata's files, which all write.

        A record says that a file is new after the call that made it, and another process
        might write it in between.
        """
        self.start(0)
        self.wait_until_served(0)
        super().start_all()


def work(fleet: Fleet, folder: Path, seed: int) -> None:
    """Run the clients to their end; *folder* gets the record, "trace"."""
    words: list[str | Path | int] = [fleet.metadata, folder / "trace", seed]
    log = folder / "worker.log"
    with Daemon(*words, log=log, program=[str(WORKER)], environment=fleet.environment) as worker:
        assert worker.process.wait(DEADLINE_S) == 0, worker.log


@dataclass
class Promised:
    """The acknowledgements to clients up to a moment. Ends are exclusive."""

    created: set[int] = field(default_factory=set)
    sent: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    closed: dict[int, int] = field(default_factory=dict)
    messages: int = 0

    def hear(self, record: Record) -> None:
        """Go on by one record."""
        said = json.loads(record.data) if record.kind is Kind.NOTE else {}
        if "created" in said:
            self.created.add(said["created"])
        for what in ("sent", "kept", "closed"):
            if what in said:
                ledger_id, end = said[what]
                getattr(self, what)[ledger_id] = end
        self.messages = said.get("messages", self.messages)

    async def check(self, fleet: Fleet) -> None:
        """Assert that the cluster has all of it, and lets no former writer go on."""
        with never_twice(), trio.fail_after(DEADLINE_S):
            async with ledger_client.connect(fleet.metadata, options=PATIENCE) as client:
                # First what a recovery would mend.
                for ledger_id in sorted(self.created):
                    await self._check_key(client, fleet, ledger_id)
                for ledger_id in sorted(self.closed):
                    await self._check_closed(client, fleet, ledger_id)
                for ledger_id in sorted(self.created):
                    await self._check_entries(client, ledger_id)
                async with client.ledgers.create(3, 3, 2) as ledger:
                    assert ledger.id > max(self.created, default=0), "an id is issued again"
                    await ledger.append(b"the cluster goes on")
                if self.messages:
                    await self._check_topic(client)

    async def _check_key(self, client: Client, fleet: Fleet, ledger_id: int) -> None:
        """Bookies with entries of a ledger refuse another key than its own."""
        info = await client.ledgers.info(ledger_id)
        first, ensemble = info.bookies[-1]
        spared = info.write_quorum - info.ack_quorum  # bookies that may not know it at all
        # Such a bookie would take the key, and then refuse a recovery.
        if (spared and ledger_id not in self.closed) or self.kept.get(ledger_id, 0) < first + 3:
            return
        end = self.sent[ledger_id]
        codes = [await add(fleet, name, ledger_id, end, key=v2.OTHER_KEY) for name in ensemble]
        refused = sum(code == Code.UNAUTHORIZED for code in codes)
        assert refused >= len(ensemble) - spared, (ledger_id, ensemble, codes)

    async def _check_closed(self, client: Client, fleet: Fleet, ledger_id: int) -> None:
        """It is closed where it was, and a writer that it was taken from gets no ack quorum."""
        info = await client.ledgers.info(ledger_id)
        assert info.state is LedgerState.CLOSED, ledger_id
        assert info.last_entry + 1 == self.closed[ledger_id], ledger_id
        if self.sent[ledger_id] == self.kept.get(ledger_id):
            return  # its writer closed it
        ensemble, end = info.bookies[-1][1], info.last_entry + 1
        codes = [await add(fleet, name, ledger_id, end) for name in ensemble]
        for start in range(len(ensemble)):
            those = [codes[(start + i) % len(codes)] for i in range(info.write_quorum)]
            taken = sum(code != Code.FENCED for code in those)
            assert taken < info.ack_quorum, (ledger_id, ensemble, codes)

    async def _check_entries(self, client: Client, ledger_id: int) -> None:
        """Recovery closes it, with all that was acknowledged and nothing that was not sent."""
        kept, sent = self.kept.get(ledger_id, 0), self.sent.get(ledger_id, 0)
        async with client.ledgers.open(ledger_id) as reader:
            assert reader.closed
            end = reader.last_confirmed + 1
            assert kept <= end <= sent, (ledger_id, kept, end, sent)
            entries = await reader.read(0, end - 1) if end else []
        assert [entry.payload for entry in entries] == [payload(ledger_id, i) for i in range(end)]

    async def _check_topic(self, client: Client) -> None:
        async with client.producer(TOPIC, producer_name=PRODUCER, access="take-over") as producer:
            end = await producer.last_sequence() + 1
            assert end >= self.messages
            # Sent again, and kept once.
            await producer.send_many([message(n) for n in range(end)], sequence=0)
        found: list[bytes | None] = []
        async with client.reader(TOPIC) as reader:
            while messages := await reader.next_messages():
                found += [each.value for each in messages]
        assert found == [message(n) for n in range(end)]


async def add(
    fleet: Fleet, name: str, ledger_id: int, entry_id: int, *, key: bytes = v2.KEY
) -> int:
    """Send an entry to one bookie as a writer would, and return the code of the answer."""
    address = parse_address(fleet.address(fleet.number(name)))
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await stream.send_all(v2.add(ledger_id, entry_id, key=key))
        answer = b""
        while len(answer) < 28:
            answer += await stream.receive_some()
    return v2.parse(answer).code


@dataclass(frozen=True)
class Cut:
    """A moment at which the power goes. *where*: it, in words."""

    disk: Disk
    promised: Promised
    chance: random.Random | None
    where: str

    def lay(self, root: Path) -> None:
        """Replace what *root* holds by what the cut leaves."""
        shutil.rmtree(root)
        self.disk.image(root, self.chance)


def cuts(records: Sequence[Record], seed: int, count: int) -> Iterator[Cut]:
    """Yield *count* moments and what is lost, as *seed* has it; the last moment is one.

    Each is valid until the next is taken. In every other one all is lost that no sync
    covers; in the rest chance decides.
    """
    chance = random.Random(seed)
    places = {len(records)}
    while len(places) < count:
        places.add(chosen(records, chance, len(places)))
    disk, promised = Disk(), Promised()
    taken = 0
    for at, record in enumerate(records, 1):
        disk.apply(record)
        promised.hear(record)
        if at in places:
            taken += 1
            loses = random.Random(f"{seed} {at}") if taken % 2 else None
            what = "what chance decides" if loses else "all that is unsynced"
            where = f"power cut behind record {at} of {len(records)}, {record.kind}; lost: {what}"
            yield Cut(disk, promised, loses, where)


def chosen(records: Sequence[Record], chance: random.Random, turn: int) -> int:
    """Return a place: in turn behind a promise, behind a change of names, and anywhere."""
    notes = [at for at, record in enumerate(records, 1) if record.kind is Kind.NOTE]
    later = range(notes[0], len(records))
    names = [at for at in later if records[at - 1].kind in _NAMING]
    return chance.choice((notes, names, later)[turn % 3])
