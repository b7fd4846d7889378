"""Succession: a bookie that lost its folders continues in empty ones under its old name.

Ledger records name bookies, not disks. So the successor keeps the name and gets a new
cookie; the old folders, should they turn up again, are refused. It starts in limbo: it
never answers "no such entry" until repair has given it every entry that it should hold.

The limbo file is written first and the complete cookie last. A crash in between leaves
either a bookie that refuses to start or one in limbo; the command can be repeated.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Sequence
from pathlib import Path

import trio

from bookie.config import BookieConfig
from bookie.cookie import cluster_instance, find_bookie, find_bookie_of_folders
from bookie.cookie_file import (
    Cookie,
    CookieRefused,
    Folder,
    absolute,
    look,
    write_cookies,
)
from bookie.durable import make_folder
from bookie.limbo import enter_limbo
from metadata.records import (
    CookieRecord,
    bookie_lease,
    cookie_key,
    decode_bookie,
    decode_cookie,
    encode_record,
)
from metadata.store import ABSENT, MetadataStore


async def succeed(config: BookieConfig, store: MetadataStore) -> CookieRecord:
    """Assign the empty folders of *config* to a bookie that lost its own.

    The bookie is the one named by config.bookie_id, or else the one whose record names these
    folders. The caller must hold the locks of the folders (lock.py).

    Returns:
        The bookie's new record. The bookie starts in limbo and leaves it once repair has
        refilled it.

    Raises:
        CookieRefused: the metadata does not have the bookie (fault "unknown"), it is
            registered ("serving"), or a folder is not empty ("foreign"). Nothing was changed.
        MetadataError: the store did not answer, or another process replaced the bookie first.
        OSError: a folder cannot be written.
    """
    known = await _predecessor(config, store)
    folders = await look(config)
    _check_empty(folders, known.bookie_id)
    await _check_away(store, known.bookie_id)
    cookie = _begun(folders) or await _new_cookie(config, store, known.bookie_id)
    await trio.to_thread.run_sync(_begin_in_limbo, Path(config.ledger_folder))
    await write_cookies(folders, cookie, complete=False)
    await _take_name(store, cookie.record)
    await write_cookies(folders, cookie, complete=True)
    return cookie.record


async def _predecessor(config: BookieConfig, store: MetadataStore) -> CookieRecord:
    if config.bookie_id:
        known, what = await find_bookie(store, config.bookie_id), config.bookie_id
    else:
        known, what = await find_bookie_of_folders(config, store), "with these folders"
    if known is None:
        raise CookieRefused(
            "unknown",
            config.metadata,
            f"no bookie {what} is known there",
            "check --metadata, and name it by --bookie-id, as `quire cluster status` lists it. "
            "For a new bookie use `bookie run`",
        )
    return known


def _check_empty(folders: Sequence[Folder], bookie_id: str) -> None:
    for folder in folders:
        if folder.has_data:
            raise CookieRefused(
                "foreign",
                str(folder.path),
                "holds files",
                f"start bookie {bookie_id} as it is, or name empty folders",
            )
        if folder.cookie is not None and folder.cookie.complete:
            raise CookieRefused(
                "foreign",
                str(folder.path),
                f"holds bookie {folder.cookie.bookie_id} already",
                "`bookie run` starts it",
            )
        if folder.cookie is not None and folder.cookie.bookie_id != bookie_id:
            raise CookieRefused(
                "foreign",
                str(folder.path),
                f"was begun as bookie {folder.cookie.bookie_id}",
                "correct bookie_id, or name empty folders",
            )


async def _check_away(store: MetadataStore, bookie_id: str) -> None:
    for lease in await store.leases(bookie_lease(bookie_id)):
        if lease.name == bookie_lease(bookie_id):
            raise CookieRefused(
                "serving",
                f"bookie {bookie_id}",
                f"serves at {decode_bookie(lease.name, lease.value).address}, or did until now",
                f"stop it, or wait {lease.expires_in_s:.0f} s, and try again",
            )


def _begun(folders: Sequence[Folder]) -> Cookie | None:
    """Return the incomplete cookie of an earlier, interrupted attempt, if there is one."""
    return next((folder.cookie for folder in folders if folder.cookie is not None), None)


async def _new_cookie(config: BookieConfig, store: MetadataStore, bookie_id: str) -> Cookie:
    return Cookie(
        bookie_id=bookie_id,
        cookie_id=secrets.token_hex(16),
        instance_id=await cluster_instance(config, store),
        role="journal",
        journal_folder=absolute(config.journal_folder),
        ledger_folder=absolute(config.ledger_folder),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        complete=False,
    )


def _begin_in_limbo(ledger_folder: Path) -> None:
    make_folder(ledger_folder)
    enter_limbo(ledger_folder, ())


async def _take_name(store: MetadataStore, record: CookieRecord) -> None:
    """Replace the bookie's record. Raises MetadataError if another process changed it first."""
    key = cookie_key(record.bookie_id)
    found = await store.get(key)
    expected = ABSENT if found is None else found.version
    if found is None or decode_cookie(key, found.value) != record:
        await store.put(key, encode_record(record), expected=expected)
