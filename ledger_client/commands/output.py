"""Where entries go: standard output, written past every buffer.

A write blocks when nobody reads, so it happens on a thread and can be given up.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable

import click
import msgspec
import trio

from ledger_client.commands.records import join_framed
from ledger_client.entries import EntryBatch

Form = Callable[[EntryBatch], bytes]


def as_lines(batch: EntryBatch) -> bytes:
    """Return the payloads one after the other."""
    return b"".join(batch.payloads())


def as_frames(batch: EntryBatch) -> bytes:
    """Return the payloads, each with its size in front."""
    return join_framed(list(batch.payloads()))


def as_json(batch: EntryBatch) -> bytes:
    """Return an object on a line for each entry, its payload in base64."""
    return b"".join(
        msgspec.json.encode(
            {
                "ledger_id": entry.ledger_id,
                "entry_id": entry.entry_id,
                "payload": base64.b64encode(entry.payload).decode(),
            }
        )
        + b"\n"
        for entry in batch
    )


def form_for(*, framed: bool, json: bool) -> Form:
    """Return the form that the options ask for."""
    if framed and json:
        raise click.UsageError("--framed and --json exclude each other")
    if json:
        return as_json
    return as_frames if framed else as_lines


async def put(data: bytes) -> None:
    """Write *data* to standard output.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """
    await trio.to_thread.run_sync(_write, sys.stdout.fileno(), data, abandon_on_cancel=True)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
