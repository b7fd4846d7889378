"""Cookies: a bookie starts only on its own folders, and only if all of them are there.

A bookie that came back with an empty disk would answer "no such entry" for entries that
it acknowledged, and would not know which ledgers are fenced. So the same identity is
written in three places, and all must agree:

    <journal folder>/cookie.json      <ledger folder>/cookie.json      cookies/<bookie id>
                                                                       in the metadata

A new bookie, which has a cookie in none of them, gets one. ``complete`` distinguishes a
crash during that from damage: both files are written as incomplete, then the record, then
both files as complete. While a file is incomplete, the bookie has never served, and the
next start continues from there.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from bookie.config import BookieConfig
from bookie.cookie_file import (
    FILE_NAME,
    Cookie,
    CookieRefused,
    Folder,
    absolute,
    look,
    write_cookies,
)
from metadata.errors import BadRecord, VersionConflict
from metadata.moving import check_moved_in
from metadata.records import (
    COOKIES,
    INSTANCE,
    CookieRecord,
    cookie_key,
    decode_cookie,
    encode_record,
)
from metadata.store import ABSENT, MetadataStore, items_under, pages
from metadata.urls import SQLITE_SCHEME
from metadata.zookeeper.url import is_zookeeper_url

LOST_ID = (
    "check --metadata; if the cluster's id was lost, import a backup, or put the id back (in "
    "ZooKeeper: the node INSTANCEID beside the ledgers)"
)


async def check_cookie(config: BookieConfig, store: MetadataStore) -> CookieRecord:
    """Check that the folders of *config* belong to this bookie, or create a new bookie in them.

    The caller must hold the locks of the folders (lock.py). A new bookie's record is written
    to *store*.

    Returns:
        The bookie's record; its bookie_id is the name to serve under.

    Raises:
        CookieRefused: the cookies disagree, with any fault except "serving".
        MetadataError: the store did not answer, or holds half of an import.
        OSError: a folder cannot be read or written.
    """
    await check_moved_in(store)
    folders = await look(config)
    cookies = [folder.cookie for folder in folders if folder.cookie is not None]
    if not cookies:
        return await _create(config, store, folders)
    _check_agreement(config, folders, cookies)
    cookie = cookies[0]
    record = await find_bookie(store, cookie.bookie_id)
    if record is None and not any(each.complete for each in cookies):
        # Its creation was interrupted, perhaps for another cluster than the present one.
        cookie = msgspec.structs.replace(cookie, instance_id=await cluster_instance(config, store))
        return await _complete(store, folders, cookie)
    _check_presence(folders, cookie)
    _check_record(cookie, record)
    await _check_instance(store, cookie)
    _check_paths(config, cookies, record)
    if not all(each.complete for each in cookies):
        await write_cookies(folders, cookie, complete=True)
    return cookie.record


async def adopt_folders(config: BookieConfig, store: MetadataStore) -> CookieRecord:
    """Accept that the folders were moved: write their present paths into the cookies.

    Safe to repeat after a crash. From then on, a copy left at the old paths refuses to start.

    Raises:
        CookieRefused: the cookies disagree in more than the paths.
    """
    await check_moved_in(store)
    folders = await look(config)
    cookies = [folder.cookie for folder in folders if folder.cookie is not None]
    if not cookies:
        raise CookieRefused("emptied", config.ledger_folder, "no cookie here", "nothing to adopt")
    _check_agreement(config, folders, cookies)
    _check_presence(folders, cookies[0])
    record = await find_bookie(store, cookies[0].bookie_id)
    _check_record(cookies[0], record)
    await _check_instance(store, cookies[0])
    cookie = msgspec.structs.replace(
        cookies[0],
        journal_folder=absolute(config.journal_folder),
        ledger_folder=absolute(config.ledger_folder),
    )
    await store.put(cookie_key(cookie.bookie_id), encode_record(cookie.record))
    await write_cookies(folders, cookie, complete=True)
    return cookie.record


async def find_bookie(store: MetadataStore, bookie_id: str) -> CookieRecord | None:
    """Return the record of a bookie, or None if there is no such bookie. Raises MetadataError."""
    key = cookie_key(bookie_id)
    found = await store.get(key)
    return decode_cookie(key, found.value) if found else None


async def _create(
    config: BookieConfig, store: MetadataStore, folders: Sequence[Folder]
) -> CookieRecord:
    for folder in folders:
        if folder.has_data:
            raise CookieRefused(
                "foreign",
                str(folder.path),
                f"holds files but no {FILE_NAME}, so it is no bookie's folder",
                f"restore {FILE_NAME}, or name an empty folder",
            )
    await _check_not_emptied(config, store)
    cookie = Cookie(
        bookie_id=config.bookie_id or f"bookie-{secrets.token_hex(4)}",
        cookie_id=secrets.token_hex(16),
        instance_id=await cluster_instance(config, store),
        role="journal",
        journal_folder=absolute(config.journal_folder),
        ledger_folder=absolute(config.ledger_folder),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        complete=False,
    )
    return await _complete(store, folders, cookie)


async def _check_not_emptied(config: BookieConfig, store: MetadataStore) -> None:
    """Raise CookieRefused if the metadata has a bookie that kept its data in these folders."""
    if config.bookie_id:
        known = await find_bookie(store, config.bookie_id)
    else:
        known = await find_bookie_of_folders(config, store)
    if known is None:
        return
    raise CookieRefused(
        "emptied",
        absolute(config.ledger_folder),
        f"empty or missing, but bookie {known.bookie_id} had its data in {known.ledger_folder}",
        "mount the right disk; or, if it is lost, let it be refilled by `bookie replace`; "
        "or, for another bookie, name it with --bookie-id",
    )


async def find_bookie_of_folders(config: BookieConfig, store: MetadataStore) -> CookieRecord | None:
    """Return the record that names a folder of *config*, if any. Reads all bookies' records.

    In a store of many hosts a folder of that name may be another host's, so there is none.
    """
    if not config.metadata.startswith(SQLITE_SCHEME):
        return None
    places = {absolute(config.journal_folder), absolute(config.ledger_folder)}
    known = None
    async for page in pages(store, COOKIES):
        for key, found in page:
            record = decode_cookie(key, found.value)
            if places & {record.journal_folder, record.ledger_folder}:
                known = record
    return known


async def _complete(
    store: MetadataStore, folders: Sequence[Folder], cookie: Cookie
) -> CookieRecord:
    for folder in folders:
        if folder.has_data:
            raise CookieRefused(
                "foreign",
                str(folder.path),
                "holds files that no bookie wrote",
                "name an empty folder",
            )
    await write_cookies(folders, cookie, complete=False)
    key = cookie_key(cookie.bookie_id)
    try:
        await store.put(key, encode_record(cookie.record), expected=ABSENT)
    except VersionConflict as cause:
        # It is our own record if an earlier attempt was interrupted after writing it.
        record = await find_bookie(store, cookie.bookie_id)
        if record != cookie.record:
            raise CookieRefused(
                "unknown", key, "another bookie has this name already", "choose another --bookie-id"
            ) from cause
    await write_cookies(folders, cookie, complete=True)
    return cookie.record


async def cluster_instance(config: BookieConfig, store: MetadataStore) -> str:
    """Return the id of the cluster; its first bookie creates it.

    Raises:
        CookieRefused: the store has bookies, and the id was lost.
        MetadataError: the store did not answer, or is damaged.
    """
    found = await store.get(INSTANCE)
    if found is not None and found.value:
        return found.value.decode()
    # A file is lost as a whole, but others may remove a node of a ZooKeeper.
    may_be_lost = is_zookeeper_url(config.metadata)
    if may_be_lost and (former := await _instance_in_cookies(store)):
        found = await store.get(INSTANCE)
        if found is not None and found.value:  # the first bookie came meanwhile
            return found.value.decode()
        raise CookieRefused(
            "unknown",
            INSTANCE,
            f"it is missing, though there are bookies of cluster {former}",
            LOST_ID,
        )
    fresh = secrets.token_hex(16)
    try:
        expected = ABSENT if found is None else found.version
        await store.put(INSTANCE, fresh.encode(), expected=expected)
    except VersionConflict:
        return await cluster_instance(config, store)
    return fresh


async def _instance_in_cookies(store: MetadataStore) -> str:
    """Return the id of the cluster that bookies are of, "" for none: BookKeeper's may have none."""
    for key, found in await items_under(store, COOKIES):
        with suppress(BadRecord):
            if instance := decode_cookie(key, found.value).instance_id:
                return instance
    return ""


def _check_agreement(
    config: BookieConfig, folders: Sequence[Folder], cookies: Sequence[Cookie]
) -> None:
    for folder in folders:
        if folder.cookie is not None and folder.cookie.role != folder.role:
            raise CookieRefused(
                "foreign",
                str(folder.path),
                f"this is the {folder.cookie.role} folder of bookie {folder.cookie.bookie_id}",
                "swap journal_folder and ledger_folder in the configuration",
            )
    if len({(each.bookie_id, each.cookie_id, each.instance_id) for each in cookies}) > 1:
        names = " and ".join(each.bookie_id for each in cookies)
        raise CookieRefused(
            "foreign",
            config.ledger_folder,
            f"the two folders belong to different bookies ({names})",
            "correct journal_folder or ledger_folder",
        )
    found = cookies[0].bookie_id
    if config.bookie_id not in ("", found):
        raise CookieRefused(
            "foreign",
            config.ledger_folder,
            f"this is the data of bookie {found}, not of {config.bookie_id}",
            "correct bookie_id, or the folders",
        )


def _check_presence(folders: Sequence[Folder], cookie: Cookie) -> None:
    for folder in folders:
        if folder.cookie is None:
            raise CookieRefused(
                "emptied",
                str(folder.path),
                f"the {folder.role} folder of bookie {cookie.bookie_id} is missing, or has no "
                f"{FILE_NAME}",
                "mount the right disk; or give the bookie's copies up with `bookie format --force`",
            )


def _check_record(cookie: Cookie, record: CookieRecord | None) -> None:
    if record is None:
        raise CookieRefused(
            "unknown",
            cookie_key(cookie.bookie_id),
            "the metadata does not know this bookie",
            "it is probably the wrong store: check --metadata. If the bookie was decommissioned, "
            "its copies are elsewhere: start it again with empty folders",
        )
    if record.cookie_id != cookie.cookie_id or record.instance_id != cookie.instance_id:
        raise CookieRefused(
            "unknown",
            cookie_key(cookie.bookie_id),
            "the metadata knows another bookie by this name",
            "this data is from another cluster, or from before a format; check --metadata",
        )


async def _check_instance(store: MetadataStore, cookie: Cookie) -> None:
    """Raise CookieRefused if the store is of another cluster than the cookie, by its own record."""
    found = await store.get(INSTANCE)
    here = b"" if found is None else found.value
    if not here:
        raise CookieRefused(
            "unknown",
            INSTANCE,
            f"it is missing; bookie {cookie.bookie_id} is of cluster {cookie.instance_id}",
            LOST_ID,
        )
    if (other := here.decode(errors="replace")) != cookie.instance_id:
        raise CookieRefused(
            "unknown",
            INSTANCE,
            f"bookie {cookie.bookie_id} is of cluster {cookie.instance_id}, and this is another: "
            f"{other}",
            "check --metadata",
        )


def _check_paths(
    config: BookieConfig, cookies: Sequence[Cookie], record: CookieRecord | None
) -> None:
    here = (absolute(config.journal_folder), absolute(config.ledger_folder))
    for known in (*cookies, record):
        if known is not None and (known.journal_folder, known.ledger_folder) != here:
            raise CookieRefused(
                "moved",
                here[1],
                f"bookie {known.bookie_id} had its folders at {known.journal_folder} and "
                f"{known.ledger_folder}",
                "if they were moved, and this is no copy, run `bookie format --moved`",
            )
