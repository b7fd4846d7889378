"""The last confirmed entry, asked of all bookies of the newest fragment.

Any of them may lag behind, and none of them can be ahead: an entry that a
bookie calls confirmed was acknowledged. So the greatest answer counts. It is a
hint that may be late, never one that is wrong.
"""

from __future__ import annotations

import trio

from ledger_client.errors import NoSuchLedger, ReplicasUnavailable
from ledger_client.replies import Reply
from ledger_client.source import LedgerSource
from native import frame
from native.frame import Code

NOTHING_KNOWN = -1
STRAGGLER_S = 0.5
"""How long to wait for the others once one bookie answered."""


async def ask_confirmed(source: LedgerSource) -> int:
    """Return the greatest last confirmed entry that the bookies know, -1 for none.

    Waits for all of them, but not for long once one answered.

    Raises:
        ReplicasUnavailable: none of them answered.
        NoSuchLedger: it was deleted, and another one has its id now.
    """
    replies = _ask_all(source)
    with trio.move_on_after(source.options.request_timeout_s):
        await replies.wait_for(1)
    with trio.move_on_after(STRAGGLER_S):
        await replies.wait_for(len(replies.asked))
    answers = [lac for reply in replies.asked if (lac := _judge(reply)) is not None]
    for reply in replies.asked:
        reply.abandon()
        if reply.response is not None and reply.response.code == Code.OTHER_LEDGER:
            raise NoSuchLedger(source.ledger_id)
    if not answers:
        raise ReplicasUnavailable(
            ledger_id=source.ledger_id,
            entry_id=source.record.fragments[-1].first_entry,
            reasons={reply.bookie_id: _reason(reply) for reply in replies.asked},
        )
    floor = source.record.fragments[-1].first_entry - 1
    return max(floor, *answers)


class _Replies:
    """Replies of several bookies, waited for together."""

    def __init__(self) -> None:
        self.asked: list[Reply] = []
        self._news = trio.Event()

    def tell(self) -> None:
        self._news.set()

    async def wait_for(self, good: int) -> None:
        """Wait for *good* answers, or until all have arrived, good or not."""
        while True:
            answered = sum(_judge(reply) is not None for reply in self.asked)
            if answered >= good or all(reply.arrived for reply in self.asked):
                return
            self._news = trio.Event()
            await self._news.wait()


def _ask_all(source: LedgerSource) -> _Replies:
    replies = _Replies()
    for bookie in source.newest_ensemble():
        request_id = bookie.next_request_id()
        request = frame.read_wait(
            source.ledger_id,
            0,
            request_id=request_id,
            count_max=0,
            size_max=0,
            known_lac=NOTHING_KNOWN,
            wait_ms=0,
        )
        replies.asked.append(bookie.ask(request, request_id, replies.tell, source.name))
    return replies


def _judge(reply: Reply) -> int | None:
    """Return the last confirmed entry in the answer; None when there is no answer."""
    if reply.response is None:
        return None
    if reply.response.code in (Code.NO_LEDGER, Code.NO_ENTRY):
        return NOTHING_KNOWN
    return reply.response.lac if reply.response.code == Code.OK else None


def _reason(reply: Reply) -> str:
    if reply.failure is not None:
        return reply.failure.reason
    if reply.response is not None:
        return f"answered with code {reply.response.code}"
    return "no answer"
