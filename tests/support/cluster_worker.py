"""A cluster's clients, for a test that cuts the power of all of it (cluster_cut.py).

    python cluster_worker.py URL TRACE SEED

They write ledgers and a topic at the same time, and note in the record of the disks, as
JSON, what they were promised:

    {"created": ledger}            it is in the metadata
    {"sent": [ledger, end]}        before the entries below *end* go out
    {"kept": [ledger, end]}        once all entries below *end* are acknowledged
    {"closed": [ledger, end]}      once it is closed, or was recovered from its writer
    {"messages": end}              once the topic's messages below *end* are acknowledged

A promise is noted after its answer came, and so stands behind the syncs it relies on.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio
from chance import seed_process
from power_cut import note

import ledger_client
from ledger_client import Client, LedgerWriter, Options
from ledger_client.errors import LedgerError

# No bookie is given up because the machine is busy.
PATIENCE = Options(bookie_timeout_s=60, slow_bookie_s=60, append_timeout_s=60, request_timeout_s=60)
TOPIC = "cut/messages"
PRODUCER = "named"
QUORUMS = ((3, 2, 2), (3, 3, 2), (3, 3, 3), (2, 2, 2))
LEDGERS = 5  # of each task
APPENDS = 12
COUNTS = (1, 3, 20)  # entries of one append
SENDS = 60
Note = Callable[..., None]


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Different for each entry, up to three pages."""
    chance = random.Random(f"{ledger_id} {entry_id}")
    return chance.randbytes(chance.choice((5, 300, 700, 3000, 9000)))


def message(number: int) -> bytes:
    """Return the value of the topic's message *number*."""
    return b"%d/" % number + payload(-1, number)[:700]


async def write(client: Client, thief: Client, say: Note, chance: random.Random) -> None:
    """Write ledgers; some are recovered by somebody else while we write."""
    for _ in range(LEDGERS):
        quorums = chance.choice(QUORUMS)
        if chance.random() < 0.4:
            # The block's end finds the ledger closed, at an end that is not ours.
            with contextlib.suppress(LedgerError):
                async with client.ledgers.create(*quorums) as ledger:
                    say(created=ledger.id)
                    await write_under_theft(ledger, thief, say, chance)
        else:
            async with client.ledgers.create(*quorums) as ledger:
                say(created=ledger.id)
                for _ in range(APPENDS):
                    assert await append(ledger, chance.choice(COUNTS), say)
            say(closed=[ledger.id, ledger.last_confirmed + 1])


async def write_under_theft(
    ledger: LedgerWriter, thief: Client, say: Note, chance: random.Random
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(APPENDS):
            if number == APPENDS // 2:
                nursery.start_soon(steal, thief, ledger.id, say)
            if not await append(ledger, chance.choice(COUNTS), say):
                break


async def append(ledger: LedgerWriter, count: int, say: Note) -> bool:
    """Append entries; False if the ledger was taken from us."""
    first = ledger.last_confirmed + 1
    say(sent=[ledger.id, first + count])
    try:
        await ledger.append_many([payload(ledger.id, first + i) for i in range(count)])
    except LedgerError:
        return False
    say(kept=[ledger.id, first + count])
    return True


async def steal(thief: Client, ledger_id: int, say: Note) -> None:
    """Recover a ledger that its writer still writes."""
    info = await thief.ledgers.recover(ledger_id)
    assert info.last_entry is not None
    say(closed=[ledger_id, info.last_entry + 1])


async def send(client: Client, say: Note) -> None:
    """Send numbered messages under a name."""
    await client.topics.create(TOPIC, replication=3, ack_quorum=2)
    end = 0
    async with client.producer(TOPIC, producer_name=PRODUCER, access="take-over") as producer:
        for number in range(SENDS):
            numbers = range(end, end + 1 + number % 7)
            await producer.send_many([message(n) for n in numbers], sequence=end)
            end = numbers.stop
            say(messages=end)


async def main(url: str, trace: Path, seed: int) -> None:
    """Do all of it once."""

    def say(**what: object) -> None:
        note(trace, json.dumps(what).encode())

    async with (
        ledger_client.connect(url, options=PATIENCE) as client,
        ledger_client.connect(url, options=PATIENCE) as thief,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(send, client, say)
        for number in range(2):
            chance = random.Random(f"{seed} {number}")
            nursery.start_soon(partial(write, client, thief, say, chance))


if __name__ == "__main__":
    seed_process(sys.argv[3])
    trio.run(main, sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
