"""A replay from topics into Parquet files, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from ledger_client.replay.manifest import file_name
from ledger_client.replay.options import ReplayOptions
from ledger_client.replay.parquet_target import (
    FILE_SIZE,
    check_complete,
    open_parquet_target,
    read_back,
)
from ledger_client.replay.replay import Aim, run_replay
from ledger_client.replay.report import Report
from ledger_client.replay.target import Target
from ledger_client.topics.client import TopicClient
from metadata.replays import ReplayRecord


async def replay_into_parquet(
    client: TopicClient,
    names: Sequence[str],
    folder: Path,
    options: ReplayOptions,
    *,
    file_size: int = FILE_SIZE,
) -> Report:
    """Replay *names* into files in *folder*; see TopicClient.replay.

    A file ends with *file_size* bytes of values and keys, or a little more.
    """
    topics = [(await client.topics.get(name))[0] for name in names]
    options.check(topics)

    def open_it(record: ReplayRecord, resumed: bool) -> AbstractAsyncContextManager[Target]:
        return open_parquet_target(
            folder, record, resumed=resumed, restart=options.restart, file_size=file_size
        )

    aim = Aim(
        _text(folder),
        open_it,
        check=partial(check_complete, folder),
        read_back=partial(read_back, folder),
        name_of=file_name,
    )
    return await run_replay(client, topics, aim, options)


def _text(folder: Path) -> str:
    return f"folder {folder.absolute()}"
