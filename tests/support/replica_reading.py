"""One bookie's entries of a ledger, read from that bookie alone.

Many questions are under way at once, since a striped ledger lies on a bookie in runs
of a few entries. Whatever is no sound entry counts as not held.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

import trio
from history import digest_of

from native import frame
from native.digest import Digest
from native.frame import Code
from native.link import Link, Response, check_entries

ANSWERS_TIMEOUT_S = 30.0
RECEIVE_SIZE = 256 * 1024
RUNS_UNDER_WAY = 64
BATCH_SIZE = 1 << 20
Run = tuple[int, int]
"""First and last entry, both included"""


async def read_replica(address: str, ledger_id: int, runs: Iterable[Run]) -> dict[int, int]:
    """Return the digests of those entries of *runs* that the bookie at *address* holds.

    Raises:
        OSError, trio.TooSlowError: it cannot be reached, or does not answer.
    """
    host, _, port = address.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        return await _Reading(stream, ledger_id, runs).read()


class _Reading:
    def __init__(self, stream: trio.SocketStream, ledger_id: int, runs: Iterable[Run]) -> None:
        self._stream = stream
        self._link = Link()
        self._ledger_id = ledger_id
        self._left = deque(runs)
        self._held: dict[int, int] = {}

    async def read(self) -> dict[int, int]:
        while self._left:
            asked = list(itertools.islice(self._left, RUNS_UNDER_WAY))
            for _ in asked:
                self._left.popleft()
            with trio.fail_after(ANSWERS_TIMEOUT_S):
                for response in await self._ask(asked):
                    self._take(response, *asked[response.request_id])
        return self._held

    async def _ask(self, runs: list[Run]) -> list[Response]:
        questions = [
            frame.batch_read(self._ledger_id, first, number, last - first + 1, BATCH_SIZE)
            for number, (first, last) in enumerate(runs)
        ]
        await self._stream.send_all(b"".join(questions))
        responses: list[Response] = []
        while len(responses) < len(runs):
            data = await self._stream.receive_some(RECEIVE_SIZE)
            if not data:
                raise ConnectionResetError("the bookie closed the connection")
            responses += self._link.feed(data)
        return responses

    def _take(self, response: Response, first: int, last: int) -> None:
        """Keep what is sound, and ask for what stands behind it or behind the first unsound one."""
        count = 0
        if response.code == Code.OK:
            body = memoryview(response.body)
            found = check_entries(Digest(), body, self._ledger_id, first, last - first + 1)
            count = found.count
            places = zip(itertools.count(first), found.offsets, found.sizes, strict=False)
            for entry, offset, size in places:
                self._held[entry] = digest_of(body[offset : offset + size])
        following = first + max(count, 1)
        if following <= last:
            self._left.append((following, last))
