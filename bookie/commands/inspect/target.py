"""The target of an inspection: a bookie's folders, or a running bookie."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
import msgspec
import trio

from bookie.commands import options
from bookie.commands.call import RemoteBookie, locate, open_remote
from metadata.errors import BadAddress

T = TypeVar("T")

_address = click.option(
    "--address", metavar="HOST:PORT", help="Ask this running bookie instead; also a bookie:// URL."
)


class InspectionTarget(msgspec.Struct, frozen=True):
    """The bookie to inspect; *address* is "" if its files are to be read."""

    journal_folder: Path
    ledger_folder: Path
    address: str = ""

    def ask(self, question: Callable[[RemoteBookie], Awaitable[T]]) -> T:
        """Connect to the bookie, run *question*, and return its result.

        Raises:
            click.UsageError: *address* is malformed.
            CommandFailed: no bookie answers there.
        """
        answer: T = trio.run(self._ask, question)
        return answer

    async def _ask(self, question: Callable[[RemoteBookie], Awaitable[T]]) -> T:
        try:
            address, access = locate(self.address)
        except BadAddress as cause:
            raise click.UsageError(f"--address: {cause}") from cause
        async with open_remote(address, access) as remote:
            return await question(remote)


def of_files_or_address(command: options.Command) -> options.Command:
    """Add the options that name a bookie's folders, or the address of a running bookie.

    The command gets the bookie that they name as *place*, an InspectionTarget.
    """

    @functools.wraps(command)
    def run(
        *,
        data_folder: str | None,
        config_file: Path | None,
        settings: tuple[str, ...],
        address: str | None,
        **others: object,
    ) -> None:
        command(place=_target(data_folder, config_file, settings, address), **others)

    return options.data_folder(options.config_file(options.settings(_address(run))))


def _target(
    data_folder: str | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    address: str | None,
) -> InspectionTarget:
    """Return the bookie that the options name.

    Raises:
        click.UsageError: both folder and address are given, or a folder is missing.
        ConfigError: a setting is wrong, or neither folder nor address is given.
    """
    if address and (data_folder or config_file):
        raise click.UsageError("--address and --data exclude each other")
    if address:
        return InspectionTarget(Path(), Path(), address)
    config = options.read_config(config_file, settings, data_folder=data_folder)
    for folder in (config.journal_folder, config.ledger_folder):
        if not Path(folder).is_dir():
            raise click.UsageError(f"{folder} is not there; --data names a bookie's folder")
    return InspectionTarget(Path(config.journal_folder), Path(config.ledger_folder))
