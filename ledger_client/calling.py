"""One CALL to one bookie: about itself, or about what it holds."""

from __future__ import annotations

import trio

from ledger_client.connection import BookieConnection
from ledger_client.errors import BookieUnavailable
from ledger_client.replies import Reply
from metadata.calls import BookieReply, BookieRequest, Failure, decode_reply, encode_request
from metadata.errors import BadRecord
from native import frame
from native.frame import Code


async def call_bookie(
    connection: BookieConnection, request: BookieRequest, *, timeout_s: float
) -> BookieReply:
    """Return the bookie's answer to *request*, which is not a Failure.

    Raises:
        BookieUnavailable: it cannot be reached, said nothing for *timeout_s*, or could
            not do it.
    """
    arrived = trio.Event()
    request_id = connection.next_request_id()
    reply = connection.ask(frame.call(request_id, encode_request(request)), request_id, arrived.set)
    try:
        with trio.fail_after(timeout_s):
            await arrived.wait()
    except trio.TooSlowError:
        connection.suspect(reply.sent_at)
        raise BookieUnavailable(connection.bookie_id, f"no answer within {timeout_s:g} s") from None
    finally:
        reply.abandon()
    return _answer(reply)


def _answer(reply: Reply) -> BookieReply:
    if reply.response is None:
        assert reply.failure is not None
        raise reply.failure
    if reply.response.code != Code.OK:
        raise BookieUnavailable(reply.bookie_id, f"refused a call with code {reply.response.code}")
    try:
        answer = decode_reply(reply.response.body)
    except BadRecord as wrong:
        raise BookieUnavailable(reply.bookie_id, str(wrong)) from wrong
    if isinstance(answer, Failure):
        raise BookieUnavailable(reply.bookie_id, f"{answer.kind}: {answer.message}")
    if not isinstance(answer, BookieReply):
        raise BookieUnavailable(reply.bookie_id, f"answered {type(answer).__name__}")
    return answer
