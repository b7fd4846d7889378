"""Where keys, leases and the rest lie in ZooKeeper.

Everything of ours is under /quire, below the path that the URL names:

    /quire                 the format's version
    /quire/keys/...        one node for each key; its data is the value
    /quire/leases/...      one node for each lease
    /quire/held/<session>  folder with the names of the session's leases
    /quire/sessions        the epoch of the next session
    /quire/sessions/<n>    one ephemeral node for each session
    /quire/counters/<name> the next id
    /quire/lives/<0-4095>  what makes a check of a version exact: see plan.py
    /quire/log/<n>/        change hints: see changelog.py
    /quire/slots/          what tells whether a change was made: see commits.py
    /quire/clock           the store's time: see store_clock.py
    /quire/floor           what is added to versions: see floors.py
    /quire/sponsors/       the stores that are open

ZooKeeper answers with all names of a folder at once, so no folder may grow without bound. A key
is cut into chunks, each a folder, the last one a leaf: after its first slash, after the second one
if text is before it, and inside of numbers of five digits or more, so that the last four digits,
and in long numbers the four before them, are chunks of their own:

    topics/shop/orders                           topics:  shop:  =orders
    lanes/00000000000000000012/0000000001/0000000000
                       lanes:  000000000000  0000  0012:000000  0001:000000  =0000

So a folder holds ten thousand numbers at most, or as many texts as one namespace has. A slash
stands as ":", everything else that is not a letter, a digit or one of "-._~!$&'()*+,;@" stands
percent-encoded, as UTF-8. A leaf begins with "=", which no folder does, so that a key may be the
beginning of another one.

Folders are made when a node needs them, and removed when they have had none for a while
(sweeping.py), so a walk opens no more of them than there are keys.

A walk in the order of keys opens folders as it comes to them: a folder's text is the beginning of
all keys in it, so none of them is before it.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple
from urllib.parse import quote, unquote

ROOT = "/quire"
KEYS = f"{ROOT}/keys"
LEASES = f"{ROOT}/leases"
HELD = f"{ROOT}/held"
SESSIONS = f"{ROOT}/sessions"
COUNTERS = f"{ROOT}/counters"
LIVES = f"{ROOT}/lives"
LOG = f"{ROOT}/log"
SLOTS = f"{ROOT}/slots"
CLOCK = f"{ROOT}/clock"
FLOOR = f"{ROOT}/floor"
SPONSORS = f"{ROOT}/sponsors"
FOLDERS = (KEYS, LEASES, HELD, SESSIONS, COUNTERS, LIVES, SLOTS, SPONSORS)
LIVES_COUNT = 4096
LIVES_BLOCK = 256
_SAFE = "!$&'()*+,;@"
_NUMBER = re.compile("[0-9]{5,}")
_SPLIT_DIGITS = 4
_LONG_NUMBER_DIGITS = 12


class Place(NamedTuple):
    """A node that a walk has met: a key with its whole *text*, or a folder with its beginning."""

    text: str
    path: str
    is_leaf: bool


def cuts(key: str) -> list[int]:
    """Return where *key* is cut into chunks, rising."""
    found = set()
    first = key.find("/") + 1
    if first:
        found.add(first)
        second = key.find("/", first) + 1
        if second and not _NUMBER.search(key, first, second):
            found.add(second)
    for number in _NUMBER.finditer(key):
        start, end = number.span()
        found.add(end - _SPLIT_DIGITS)
        if end - start >= _LONG_NUMBER_DIGITS:
            found.add(end - 2 * _SPLIT_DIGITS)
    return sorted(found - {len(key)})


def leaf_path(root: str, key: str) -> str:
    """Return the path of the node of *key* under the folder *root*."""
    ends = [*cuts(key), len(key)]
    starts = [0, *ends]
    chunks = [_encode(key[start:end]) for start, end in zip(starts, ends, strict=False)]
    return "/".join([root, *chunks[:-1], f"={chunks[-1]}"])


def children_of(folder: Place, names: list[str]) -> list[Place]:
    """Return the nodes with *names* in *folder*, which is one of KEYS or LEASES or below."""
    found = []
    for name in names:
        is_leaf = name.startswith("=")
        text = folder.text + _decode(name.removeprefix("="))
        found.append(Place(text, f"{folder.path}/{name}", is_leaf))
    return found


def parents(path: str) -> list[str]:
    """Return the folders above *path*, the topmost first."""
    return [path[:at] for at in range(1, len(path)) if path[at] == "/"]


def lives_path(path: str) -> str:
    """Return the node that counts removals of *path* and some others."""
    return f"{LIVES}/{zlib.crc32(path.encode()) % LIVES_COUNT}"


def lives_block(counter: str) -> tuple[str, ...]:
    """Return the nodes that are created together with *counter*, which is one under LIVES."""
    start = int(counter.rpartition("/")[2]) // LIVES_BLOCK * LIVES_BLOCK
    return tuple(f"{LIVES}/{number}" for number in range(start, start + LIVES_BLOCK))


def session_path(epoch: int) -> str:
    """Return the node of a session."""
    return f"{SESSIONS}/{epoch}"


def held_path(session: int, name: str | None = None) -> str:
    """Return the folder of a session's leases, or the node of one that is called *name*."""
    folder = f"{HELD}/{session}"
    return folder if name is None else f"{folder}/{_encode(name)}"


def held_name(node: str) -> str:
    """Return the lease that a node in a session's folder stands for."""
    return _decode(node)


def counter_path(counter: str) -> str:
    """Return the node of a counter."""
    return f"{COUNTERS}/={_encode(counter)}"


def counter_name(node: str) -> str:
    """Return the counter that a node in the folder of counters stands for."""
    return _decode(node.removeprefix("="))


def _encode(chunk: str) -> str:
    return quote(chunk, safe=f"/{_SAFE}").replace("/", ":")


def _decode(name: str) -> str:
    return unquote(name.replace(":", "/"))
