"""A replay to standard output, in the forms of ``quire read``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

import click

from ledger_client import Client
from ledger_client.commands.message_forms import arrow_stream, json_of, text_of
from ledger_client.commands.output import put
from ledger_client.replay.options import ReplayOptions
from ledger_client.replay.report import Report
from ledger_client.replay.stream_target import Part, replay_into_stream

FormName = Literal["text", "json", "arrow"]


async def write_stream(
    client: Client, topics: Sequence[str], how: ReplayOptions, form: FormName
) -> Report:
    """Write the messages; return what was done. Raises as replay_into_stream()."""
    if form == "arrow":
        if sys.stdout.isatty():
            raise click.UsageError("an Arrow stream is nothing for a terminal: send it to a file")
        async with arrow_stream(put) as write_batch:

            async def write_part(part: Part) -> None:
                await write_batch(part.batch)

            return await replay_into_stream(client, topics, write_part, how, as_objects=False)
    encode = text_of if form == "text" else json_of

    async def write(part: Part) -> None:
        await put(encode(part.messages))

    return await replay_into_stream(client, topics, write, how, as_objects=True)
