"""Responses to requests that are not done."""

from __future__ import annotations

from native.frame import Code, Opcode, Request, batch_response, read_wait_response, response


def not_fenced(request: Request) -> bytes:
    """Return the response to a READ or BATCH_READ whose fence was not durable in time."""
    ledger_id, entry_id = request.ledger_id, request.entry_id
    if request.opcode == Opcode.READ:
        return response(Opcode.READ, Code.IO_ERROR, ledger_id, entry_id)
    return batch_response(Code.IO_ERROR, ledger_id, entry_id, request.request_id)


def too_many(request: Request) -> bytes:
    """Return the response to a read that may not wait, as too many do."""
    return read_wait_response(
        Code.TOO_MANY, request.ledger_id, request.entry_id, request.request_id, -1, False
    )
