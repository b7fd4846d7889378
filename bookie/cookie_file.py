"""The cookie file of each folder: how it is found, read and written; what can be refused.

``bookie.cookie`` decides whether what was found is right. The file, for example:

    {
      "bookie_id": "bookie-1",
      "cookie_id": "3f0c...",
      "instance_id": "9a41...",
      "role": "journal",
      "journal_folder": "/var/lib/quire/journal",
      "ledger_folder": "/var/lib/quire/ledgers",
      "created": "2025-01-31T12:00:00+00:00",
      "complete": true
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import trio

from bookie.config import BookieConfig
from bookie.durable import make_folder, replace_file, sync_folder
from bookie.errors import BookieError
from bookie.limbo import FILE_NAME as LIMBO
from metadata.records import CookieRecord

FILE_NAME = "cookie.json"
_NOT_DATA = {FILE_NAME, f"{FILE_NAME}.new", "lock", "lost+found", LIMBO}
Role = Literal["journal", "ledgers"]


class CookieRefused(BookieError):
    """Cookies disagree, so the bookie does not start. Nothing was changed."""

    def __init__(self, place: str, problem: str, advice: str) -> None:
        super().__init__(f"{place}: {problem}; {advice}")
        self.place = place


class FolderEmptied(CookieRefused):
    """A folder that held the bookie's data is empty or missing."""


class FolderForeign(CookieRefused):
    """A folder holds something else, or another bookie's data."""


class FolderMoved(CookieRefused):
    """The folders are not where they were when the bookie last started."""


class BookieUnknown(CookieRefused):
    """The metadata has no such bookie, or another one by that name."""


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a cookie file."""

    bookie_id: str
    cookie_id: str
    instance_id: str
    role: Role
    journal_folder: str
    ledger_folder: str
    created: str
    complete: bool

    @property
    def record(self) -> CookieRecord:
        """The same as the metadata keeps it."""
        return CookieRecord(
            bookie_id=self.bookie_id,
            instance_id=self.instance_id,
            journal_folder=self.journal_folder,
            ledger_folder=self.ledger_folder,
            cookie_id=self.cookie_id,
        )


class Folder(msgspec.Struct, frozen=True):
    """What was found in one of the two folders."""

    path: Path
    role: Role
    cookie: Cookie | None
    has_data: bool


async def look(config: BookieConfig) -> Sequence[Folder]:
    """Read what is in the journal folder and in the ledger folder.

    Raises:
        FolderForeign: a cookie file cannot be understood.
    """
    return await trio.to_thread.run_sync(_look, config)


def _look(config: BookieConfig) -> Sequence[Folder]:
    return (
        _look_into(Path(config.journal_folder), "journal"),
        _look_into(Path(config.ledger_folder), "ledgers"),
    )


def _look_into(path: Path, role: Role) -> Folder:
    names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    cookie = read_cookie(path) if FILE_NAME in names else None
    return Folder(path, role, cookie, has_data=bool(names - _NOT_DATA))


def read_cookie(folder: Path) -> Cookie:
    """Return the cookie kept in *folder*. Blocks.

    Raises:
        FolderForeign: it cannot be understood.
    """
    try:
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=Cookie)
    except msgspec.MsgspecError as cause:
        raise FolderForeign(
            str(folder / FILE_NAME), f"not a cookie ({cause})", "restore this file from a backup"
        ) from cause


async def write_cookies(folders: Sequence[Folder], cookie: Cookie, *, complete: bool) -> None:
    """Write *cookie* durably to both folders, the journal folder first; make them if missing."""
    for folder in folders:
        content = msgspec.structs.replace(cookie, role=folder.role, complete=complete)
        await trio.to_thread.run_sync(_write_file, folder.path, content)


def _write_file(folder: Path, cookie: Cookie) -> None:
    make_folder(folder)
    sync_folder(folder.parent)
    replace_file(folder / FILE_NAME, msgspec.json.format(msgspec.json.encode(cookie)) + b"\n")


def absolute(folder: str) -> str:
    """Return the path under which a folder is known in cookies: absolute, links followed."""
    return str(Path(folder).resolve())
