"""One bookie's own entries of a ledger, whatever the others hold."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from metadata.address import parse_address
from native import frame
from native.digest import Digest
from native.frame import Code
from native.link import Link, Response, check_entries

BATCH_SIZE = 1 << 20
BATCH_COUNT = 4096
ANSWER_TIMEOUT_S = 30.0


class ReplicaDamaged(Exception):
    """An entry failed its checksum, or the bookie could not read it."""


async def copy_at(address: str, ledger_id: int) -> AsyncIterator[list[bytes]]:
    """Yield runs of payloads from entry 0 up to the first that the bookie lacks."""
    where = parse_address(address)
    start, link = 0, Link()
    async with await trio.open_tcp_stream(where.host, where.port) as stream:
        while True:
            await stream.send_all(frame.batch_read(ledger_id, start, 1, BATCH_COUNT, BATCH_SIZE))
            with trio.fail_after(ANSWER_TIMEOUT_S):
                response = await _answer(stream, link)
            payloads = _payloads(response, start)
            if not payloads:
                return
            yield payloads
            start += len(payloads)


async def _answer(stream: trio.SocketStream, link: Link) -> Response:
    async for data in stream:
        if responses := link.feed(data):
            return responses[0]
    raise ConnectionError("the bookie closed the connection")


def _payloads(response: Response, start: int) -> list[bytes]:
    if response.code in {Code.NO_ENTRY, Code.NO_LEDGER}:
        return []
    if response.code != Code.OK:
        raise ReplicaDamaged(f"entry {start}: code {response.code}")
    found = check_entries(Digest(), response.body, response.ledger_id, start, BATCH_COUNT)
    if not found.sound:
        raise ReplicaDamaged(f"entry {start + found.count}: bad digest")
    places = zip(found.offsets, found.sizes, strict=True)
    return [bytes(response.body[offset : offset + size]) for offset, size in places]
