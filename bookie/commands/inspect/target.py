"""What is looked into: the folders of a bookie, or one that runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec
import trio

from bookie.commands import options
from bookie.commands.call import Asked, asking, locate
from metadata.errors import BadAddress

T = TypeVar("T")

_address = click.option(
    "--address", metavar="HOST:PORT", help="Ask the bookie that runs there instead; also a URL."
)


class Target(msgspec.Struct, frozen=True):
    """Where to look. *address* is "" when the files are meant."""

    journal_folder: Path
    ledger_folder: Path
    address: str = ""

    def ask(self, question: Callable[[Asked], Awaitable[T]]) -> T:
        """Connect to the bookie and return what *question* gets out of it."""
        answer: T = trio.run(self._ask, question)
        return answer

    async def _ask(self, question: Callable[[Asked], Awaitable[T]]) -> T:
        try:
            address, access = locate(self.address)
        except BadAddress as cause:
            raise click.UsageError(f"--address: {cause}") from cause
        async with asking(address, access) as asked:
            return await question(asked)


def of_files(command: options.Command) -> options.Command:
    """Add the options that name a bookie's folders."""
    return options.data_folder(options.config_file(options.settings(command)))


def of_files_or_address(command: options.Command) -> options.Command:
    """Add the options that name a bookie's folders, or the address of a running one."""
    return of_files(_address(command))


def target(
    data_folder: str | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    address: str | None = None,
) -> Target:
    """What the options name.

    Raises:
        click.UsageError: both or none of folder and address, or a folder that is missing.
    """
    if address and (data_folder or config_file):
        raise click.UsageError("--address and --data exclude each other")
    if address:
        return Target(Path(), Path(), address)
    config = options.read_config(config_file, settings, data_folder=data_folder)
    for folder in (config.journal_folder, config.ledger_folder):
        if not Path(folder).is_dir():
            raise click.UsageError(f"{folder} is not there; --data names a bookie's folder")
    return Target(Path(config.journal_folder), Path(config.ledger_folder))
