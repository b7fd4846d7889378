"""The cookie file of each folder: finding, reading and writing it, and CookieRefused.

``bookie.cookie`` decides whether the cookies found are right. An example of the file:

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

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import trio

from bookie.config import BookieConfig
from bookie.durable import make_folder, replace_file, sync_folder
from bookie.errors import BookieError
from bookie.limbo import FILE_NAME as LIMBO
from bookie.security import FILE_NAME as SECURED
from metadata.records import CookieRecord

FILE_NAME = "cookie.json"
_NOT_DATA = {FILE_NAME, f"{FILE_NAME}.new", "lock", "lost+found", LIMBO, SECURED}
Role = Literal["journal", "ledgers"]
Fault = Literal["emptied", "foreign", "moved", "unknown", "serving"]


class CookieRefused(BookieError):
    """Cookies disagree, so the bookie does not start. Nothing was changed.

    Attributes:
        fault: "emptied": a folder that held the bookie's data is empty or missing; "foreign": a
            folder holds other files, or another bookie's data; "moved": a folder is not where
            it was at the last start; "unknown": the metadata has no such bookie, or a different
            one with that name; "serving": a bookie with that name is registered.
        place: the folder or the metadata key with the fault.
    """

    def __init__(self, fault: Fault, place: str, problem: str, advice: str) -> None:
        super().__init__(f"{place}: {problem}; {advice}")
        self.fault = fault
        self.place = place


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a cookie file; *complete* is False until the bookie's record is written."""

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
        """The bookie's record in the metadata that matches this cookie."""
        return CookieRecord(
            bookie_id=self.bookie_id,
            instance_id=self.instance_id,
            journal_folder=self.journal_folder,
            ledger_folder=self.ledger_folder,
            cookie_id=self.cookie_id,
        )


class Folder(msgspec.Struct, frozen=True):
    """The state of one of the two folders, as found."""

    path: Path
    role: Role
    cookie: Cookie | None
    has_data: bool


async def look(config: BookieConfig) -> Sequence[Folder]:
    """Read the cookies of the journal folder and of the ledger folder, in this order.

    Raises:
        CookieRefused: a cookie file cannot be parsed (fault "foreign").
    """
    return await trio.to_thread.run_sync(_look, config)


async def is_new(config: BookieConfig) -> bool:
    """Return True if no bookie has ever served from these folders. Raises as look()."""
    folders = await look(config)
    return not any(each.cookie is not None and each.cookie.complete for each in folders)


def _look(config: BookieConfig) -> Sequence[Folder]:
    return (
        _look_into(Path(config.journal_folder), "journal"),
        _look_into(Path(config.ledger_folder), "ledgers"),
    )


def _look_into(path: Path, role: Role) -> Folder:
    names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    cookie = read_cookie(path) if FILE_NAME in names else None
    return Folder(path, role, cookie, has_data=bool(names - _NOT_DATA))


def check_user(config: BookieConfig) -> None:
    """Refuse to work as root on the files of a bookie that runs as another user. Blocks.

    That bookie could not open the files that are made here.

    Raises:
        BookieError: the cookie in a folder belongs to another user.
    """
    if os.geteuid() != 0:
        return
    for folder in (Path(config.journal_folder), Path(config.ledger_folder)):
        path = folder / FILE_NAME
        if path.exists() and (owner := path.stat().st_uid):
            raise BookieError(
                f"{folder}: its bookie runs as another user, who could not open what root makes "
                f"there; run this as that user: sudo -u '#{owner}' ..."
            )


def read_cookie(folder: Path) -> Cookie:
    """Return the cookie in *folder*. Blocks.

    Raises:
        CookieRefused: the file cannot be parsed (fault "foreign").
    """
    try:
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=Cookie)
    except msgspec.MsgspecError as cause:
        raise CookieRefused(
            "foreign",
            str(folder / FILE_NAME),
            f"not a cookie ({cause})",
            "restore this file from a backup",
        ) from cause


async def write_cookies(folders: Sequence[Folder], cookie: Cookie, *, complete: bool) -> None:
    """Write *cookie* durably to both folders, journal folder first; create missing folders."""
    for folder in folders:
        content = msgspec.structs.replace(cookie, role=folder.role, complete=complete)
        await trio.to_thread.run_sync(_write_file, folder.path, content)


def _write_file(folder: Path, cookie: Cookie) -> None:
    make_folder(folder)
    sync_folder(folder.parent)
    replace_file(folder / FILE_NAME, msgspec.json.format(msgspec.json.encode(cookie)) + b"\n")


def absolute(folder: str) -> str:
    """Return the path of a folder as cookies hold it: absolute, with links resolved. Blocks."""
    return str(Path(folder).resolve())
