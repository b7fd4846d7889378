"""Who is at the other end of a new connection.

An address may be taken over by another bookie while the metadata still lists it for the
one that died. What that other one holds, denies or acknowledges would count for the wrong
copy, so nothing is sent before the bookie gave its name.
"""

from __future__ import annotations

import trio

from ledger_client.session import receive_into
from metadata.access import LOGIN_WANTED
from metadata.calls import BookieInfo, BookieStatus, Failure, decode_reply, encode_request
from metadata.errors import BadRecord
from native import frame
from native.errors import ProtocolBroken
from native.frame import Code, Opcode
from native.link import Link, Response

_REQUEST_ID = 0


class Stranger(Exception):
    """Who answers is not the bookie that was wanted, or does not say who it is."""


async def introduce(stream: trio.abc.Stream, bookie_id: str) -> None:
    """Return when the bookie at the other end said that it is *bookie_id*.

    Nothing else may be asked on *stream* meanwhile.

    Raises:
        Stranger: it is another, or what it says is no answer.
        OSError, trio.BrokenResourceError: the connection is lost.
    """
    await stream.send_all(frame.call(_REQUEST_ID, encode_request(BookieInfo())))
    found = _name_in(await _answer(stream))
    if found != bookie_id:
        raise Stranger(f"{found} listens there now")


async def _answer(stream: trio.abc.Stream) -> Response:
    link = Link()
    try:
        while True:
            size = await receive_into(stream, link.room())
            if size == 0:
                raise Stranger("connection closed by the bookie")
            for response in link.filled(size):
                return response
    except ProtocolBroken as wrong:
        raise Stranger(f"broke the protocol: {wrong}") from wrong
    finally:
        link.close()


def _name_in(response: Response) -> str:
    if response.code == Code.UNAUTHORIZED:
        raise Stranger(LOGIN_WANTED)
    if response.opcode != Opcode.CALL or response.code != Code.OK:
        raise Stranger(f"did not say who it is, but opcode {response.opcode}, code {response.code}")
    try:
        told = decode_reply(response.body)
    except BadRecord as wrong:
        raise Stranger(str(wrong)) from wrong
    if isinstance(told, Failure):
        raise Stranger(told.message)
    if not isinstance(told, BookieStatus):
        raise Stranger(f"answered {type(told).__name__} when asked who it is")
    return told.bookie_id
