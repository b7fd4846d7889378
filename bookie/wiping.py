"""Deletion of a whole bookie: its record, its cookies and every file it wrote.

The record is deleted first and the cookies last. After a crash in between, the bookie
refuses to start, and a second attempt completes the deletion. Only files with a bookie's
file names are deleted; if there is any other file in the folders, nothing is deleted.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import trio

from bookie import cookie_file, limbo, lock, mark, security
from bookie.config import BookieConfig
from bookie.cookie_file import CookieRefused
from metadata.records import cookie_key
from metadata.store import MetadataStore

_DATA = re.compile(
    r"[0-9a-f]{16}\.(journal|spare|table|table\.unread|table\.part)"
    r"|[0-9a-f]{8}\.(log|index|index\.tmp|rebuilt|torn|dead)"
    r"|(lastMark|cookie\.json)\.new"
)
_DATA_NAMES = {limbo.FILE_NAME, mark.FILE_NAME, security.FILE_NAME}
_KEPT_NAMES = {lock.FILE_NAME, "lost+found"}


class Wiped(msgspec.Struct, frozen=True):
    """What was deleted; *size* in bytes."""

    bookie_id: str
    files: int
    size: int


async def wipe_bookie(config: BookieConfig, store: MetadataStore) -> Wiped:
    """Delete the bookie of *config* for good. The caller must hold the locks (lock.py).

    Returns:
        What was deleted; bookie_id is "" if there was no cookie that names it.

    Raises:
        CookieRefused: a folder holds files that are not a bookie's; nothing was deleted.
    """
    data, cookies = await trio.to_thread.run_sync(_files, config)
    bookie_id = config.bookie_id or await trio.to_thread.run_sync(_known_id, cookies)
    if bookie_id:
        await store.delete(cookie_key(bookie_id))
    size = sum(path.stat().st_size for path in data)
    for path in (*data, *cookies):
        await trio.to_thread.run_sync(path.unlink)
    return Wiped(bookie_id, len(data), size)


def _files(config: BookieConfig) -> tuple[list[Path], list[Path]]:
    data: list[Path] = []
    cookies: list[Path] = []
    for folder in (Path(config.journal_folder), Path(config.ledger_folder)):
        for path in sorted(folder.iterdir() if folder.exists() else ()):
            if path.name == cookie_file.FILE_NAME:
                cookies.append(path)
            elif path.name in _DATA_NAMES or _DATA.fullmatch(path.name):
                data.append(path)
            elif path.name not in _KEPT_NAMES:
                raise CookieRefused(
                    "foreign",
                    str(path),
                    "not a bookie's file",
                    "move it away, or name another folder",
                )
    return data, cookies


def _known_id(cookies: list[Path]) -> str:
    for path in cookies:
        try:
            return cookie_file.read_cookie(path.parent).bookie_id
        except CookieRefused:
            continue  # damaged; the other cookie may be readable
    return ""
