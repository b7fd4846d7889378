r"""Bookies as BookKeeper stores them: the cookie, and the address in ``available/``.

A cookie is a line with its version, then CookieFormat as text (Cookie.java of BookKeeper 4.18):

    5
    bookieHost: "bookie-1"
    journalDir: "/var/lib/quire/journal"
    ledgerDirs: "1\t/var/lib/quire/ledgers"
    instanceId: "9a41..."
    # quire cookie 3f0c...

The cookie's random id is ours alone. It is in a comment, which every version of BookKeeper skips;
up to 4.17 their readers refuse a field that they do not know.

A node under ``available/`` is ephemeral and holds BookieServiceInfoFormat in binary
(ZKRegistrationManager.java). A client connects to its endpoint of the protocol "bookie-rpc";
without one, a bookie's id would have to be its host:port.
"""

from __future__ import annotations

import re

from metadata.address import parse_address
from metadata.errors import BadAddress, BadRecord
from metadata.records import BookieRecord, CookieRecord
from metadata.zookeeper.protobuf import bytes_field, number_field, quoted, read_text

_COOKIE_VERSIONS = (4, 5)
_COOKIE_ID = re.compile(rb"^# quire cookie ([\x21-\x7e]{1,64})$", re.MULTILINE)
_ENDPOINT = 6
_ID, _PORT, _HOST, _PROTOCOL = 1, 2, 3, 4


def encode_cookie(record: CookieRecord) -> bytes:
    """Return *record* as BookKeeper's cookie."""
    lines = (
        "5",
        f"bookieHost: {quoted(record.bookie_id)}",
        f"journalDir: {quoted(record.journal_folder)}",
        "ledgerDirs: " + quoted(f"1\t{record.ledger_folder}"),
        f"instanceId: {quoted(record.instance_id)}",
        f"# quire cookie {record.cookie_id}",
    )
    return "".join(line + "\n" for line in lines).encode()


def decode_cookie(data: bytes) -> CookieRecord:
    """Return the cookie of one of our bookies, or of another program's, without a cookie_id.

    Raises:
        BadRecord: not a cookie of version 4 or 5.
    """
    version, _, body = data.partition(b"\n")
    if version.strip() not in [b"%d" % each for each in _COOKIE_VERSIONS]:
        raise BadRecord(f"{version[:40]!r} is not the version of a cookie known here")
    found = {name: value for name, value in read_text(body) if isinstance(value, bytes)}
    ours = _COOKIE_ID.search(body)
    try:
        _, _, ledger_folders = found.get("ledgerDirs", b"").decode().partition("\t")
        return CookieRecord(
            bookie_id=found["bookieHost"].decode(),
            instance_id=found.get("instanceId", b"").decode(),
            journal_folder=found["journalDir"].decode(),
            ledger_folder=ledger_folders,
            cookie_id=ours.group(1).decode() if ours else "",
        )
    except KeyError as missing:
        raise BadRecord(f"a cookie without {missing}") from missing
    except UnicodeDecodeError as wrong:
        raise BadRecord("a cookie is not text") from wrong


def encode_service(record: BookieRecord) -> bytes:
    """Return what a node under ``available/`` holds. Raises BadRecord for a bad address."""
    try:
        host, port = parse_address(record.address)
    except BadAddress as wrong:
        raise BadRecord(f"the bookie's address: {wrong}") from wrong
    endpoint = (
        bytes_field(_ID, "bookie")
        + number_field(_PORT, port)
        + bytes_field(_HOST, host)
        + bytes_field(_PROTOCOL, "bookie-rpc")
    )
    return bytes_field(_ENDPOINT, endpoint)
