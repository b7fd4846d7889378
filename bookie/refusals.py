"""Responses to requests that are not done."""

from __future__ import annotations

from native.frame import Code, Opcode, Request, batch_response, read_wait_response, response

_NO_LOGIN_BODY = b"\x02\x03\x00\x00\x0a\x12AuthDisabledPlugin\x12\x00"
NO_LOGIN = len(_NO_LOGIN_BODY).to_bytes(4, "big") + _NO_LOGIN_BODY
"""The response of a bookie without authentication to AUTH: plugin "AuthDisabledPlugin" and an empty
payload, in protobuf, after the header of version 2, opcode 3."""


def not_fenced(request: Request, code: Code) -> bytes:
    """Return the response to a fencing READ or BATCH_READ whose fence is in doubt, or refused."""
    ledger_id, entry_id = request.ledger_id, request.entry_id
    if request.opcode == Opcode.READ:
        return response(Opcode.READ, code, ledger_id, entry_id)
    return batch_response(code, ledger_id, entry_id, request.request_id)


def too_many(request: Request) -> bytes:
    """Return the response to a READ_WAIT that is one too many."""
    return read_wait_response(
        Code.TOO_MANY, request.ledger_id, request.entry_id, request.request_id, -1, False
    )
