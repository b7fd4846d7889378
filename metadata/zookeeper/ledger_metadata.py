r"""Ledger metadata as BookKeeper stores it: LedgerMetadataFormat, versions 1 to 3.

    BookieMetadataFormatVersion\t3\n | varint size | message      since 4.9; what is written here
    BookieMetadataFormatVersion\t2\n | the message as text
    BookieMetadataFormatVersion\t1\n | lines

    field            of                       in LedgerRecord
    ---------------  -----------------------  ---------------------------------------------
     1 quorumSize    int32                    write_quorum
     2 ensembleSize  int32                    ensemble_size
     3 length        int64                    length, only of a closed ledger
     4 lastEntryId   int64                    last_entry, only of a closed ledger
     5 state         OPEN 1, IN_RECOVERY 2,   state
                     CLOSED 3
     6 segment       1 members, 2 first entry fragments, repeated
     7 digestType    CRC32 1, HMAC 2,         digest
                     CRC32C 3, DUMMY 4
     8 password      bytes                    password
     9 ackQuorumSize int32                    ack_quorum; the write quorum without it
    10 ctime         int64                    created_ms; the node's time without it
    11 custom        1 key, 2 value           custom, and with "quire." before the key what only
                                              our record has; repeated
    12 cToken        int64                    foreign

A key of the user's that begins with "quire." has "quire.custom." before it. Whatever else is found
(fields of a later BookKeeper, also in a segment; custom values that are not text) goes into
``foreign`` and is written back as it was. Facts: LedgerMetadataSerDe.java and DataFormats.proto
of BookKeeper 4.18.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from metadata.errors import BadRecord
from metadata.records import Fragment, LedgerRecord, LedgerState, encode_password
from metadata.zookeeper.protobuf import (
    Field,
    TextFields,
    bytes_field,
    fields,
    number_field,
    read_text,
    read_varint,
    varint,
)

VERSION = 3
OURS = "quire."
_HEADER = b"BookieMetadataFormatVersion\t"
_VERSION_DIGITS_MAX = 10
_CUSTOM = OURS + "custom."
_REPLICATION = OURS + "replication"
_INCARNATION = OURS + "incarnation"
_OURS = (_REPLICATION, _INCARNATION)

_WRITE_QUORUM, _ENSEMBLE, _LENGTH, _LAST_ENTRY, _STATE, _SEGMENT = 1, 2, 3, 4, 5, 6
_DIGEST, _PASSWORD, _ACK_QUORUM, _CREATED, _CUSTOM_ENTRY, _TOKEN = 7, 8, 9, 10, 11, 12
_MEMBER, _FIRST_ENTRY = 1, 2
_KEY, _VALUE = 1, 2

_STATES = {1: LedgerState.OPEN, 2: LedgerState.IN_RECOVERY, 3: LedgerState.CLOSED}
_DIGESTS = {1: "crc32", 2: "hmac", 3: "crc32c", 4: "dummy"}
_STATE_NUMBERS = {state: number for number, state in _STATES.items()}
_DIGEST_NUMBERS = {digest: number for number, digest in _DIGESTS.items()}

_LINE_NUMBER = re.compile(r"-?[0-9]{1,19}")
_IN_RECOVERY_ENTRY = -102
_TEXT_FIELDS = {
    "quorumSize": _WRITE_QUORUM,
    "ensembleSize": _ENSEMBLE,
    "length": _LENGTH,
    "lastEntryId": _LAST_ENTRY,
    "state": _STATE,
    "segment": _SEGMENT,
    "digestType": _DIGEST,
    "password": _PASSWORD,
    "ackQuorumSize": _ACK_QUORUM,
    "ctime": _CREATED,
    "customMetadata": _CUSTOM_ENTRY,
}
_TEXT_SEGMENT = {"ensembleMember": _MEMBER, "firstEntryId": _FIRST_ENTRY}
_TEXT_CUSTOM = {"key": _KEY, "value": _VALUE}
_TEXT_MESSAGES = {"segment": _TEXT_SEGMENT, "customMetadata": _TEXT_CUSTOM}
_TEXT_ENUMS = {"OPEN": 1, "IN_RECOVERY": 2, "CLOSED": 3} | {
    digest.upper(): number for number, digest in _DIGESTS.items()
}

T = TypeVar("T")
Plain = dict[str, object]
"""A LedgerRecord in the making, unchecked."""


def encode_metadata(record: LedgerRecord) -> bytes:
    """Return *record* as a BookKeeper of version 4.9 or later reads it.

    Raises:
        BadRecord: ``foreign`` is not what decode_metadata() made.
    """
    segments, others = _foreign(record.foreign)
    message = b"".join(
        (
            number_field(_WRITE_QUORUM, record.write_quorum),
            number_field(_ENSEMBLE, record.ensemble_size),
            number_field(_LENGTH, record.length),
            number_field(_LAST_ENTRY, record.last_entry),
            number_field(_STATE, _STATE_NUMBERS[record.state]),
            *(_segment(each, segments) for each in record.fragments),
            number_field(_DIGEST, _DIGEST_NUMBERS[record.digest]),
            bytes_field(_PASSWORD, record.password_bytes),
            number_field(_ACK_QUORUM, record.ack_quorum),
            *([number_field(_CREATED, record.created_ms)] if record.created_ms else []),
            *_custom_entries(record),
            others,
        )
    )
    return _HEADER + b"%d\n" % VERSION + varint(len(message)) + message


def decode_metadata(ledger_id: int, data: bytes, *, node_created_ms: int = 0) -> LedgerRecord:
    """Return the ledger that a node of BookKeeper's describes.

    Args:
        ledger_id: the id, which only the node's path has.
        data: the node's bytes.
        node_created_ms: when the node was created, for a ledger without a time of its own.

    Raises:
        BadRecord: not ledger metadata, of a later version, or against a rule of LedgerRecord.
    """
    version, body = _read_header(data)
    if version == 1:
        plain = _read_lines(body)
    elif version == 2:
        plain = _read_message(_binary(read_text(body)))
    elif version == VERSION:
        size, begin = read_varint(body, 0)
        if begin + size != len(body):
            raise BadRecord(f"{size} bytes were written, {len(body) - begin} are here")
        plain = _read_message(body[begin:])
    else:
        raise BadRecord(f"metadata format version {version}, newer than {VERSION}: not touched")
    if not plain["created_ms"]:
        plain["created_ms"] = node_created_ms
    try:
        return msgspec.convert({"ledger_id": ledger_id, **plain}, LedgerRecord)
    except msgspec.ValidationError as wrong:
        raise BadRecord(str(wrong)) from wrong


# --- binary ------------------------------------------------------------------------------


def _segment(fragment: Fragment, foreign: Mapping[int, bytes]) -> bytes:
    members = b"".join(bytes_field(_MEMBER, each) for each in fragment.bookies)
    first = number_field(_FIRST_ENTRY, fragment.first_entry)
    return bytes_field(_SEGMENT, members + first + foreign.get(fragment.first_entry, b""))


def _custom_entries(record: LedgerRecord) -> Iterator[bytes]:
    for key, value in record.custom.items():
        yield _custom_entry(_CUSTOM + key if key.startswith(OURS) else key, value)
    if record.replication != "fanout":
        yield _custom_entry(_REPLICATION, record.replication)
    if record.incarnation:
        yield _custom_entry(_INCARNATION, str(record.incarnation))


def _custom_entry(key: str, value: str) -> bytes:
    return bytes_field(_CUSTOM_ENTRY, bytes_field(_KEY, key) + bytes_field(_VALUE, value))


def _read_header(data: bytes) -> tuple[int, bytes]:
    digits, newline, body = data[len(_HEADER) :].partition(b"\n")
    if (
        not data.startswith(_HEADER)
        or not newline
        or not digits.isdigit()
        or len(digits) > _VERSION_DIGITS_MAX
    ):
        raise BadRecord(f"{data[:40]!r} does not begin ledger metadata")
    return int(digits), body


def _read_message(message: bytes) -> Plain:
    plain: dict[int, int | bytes] = {}
    fragments: list[Plain] = []
    custom: dict[str, str] = {}
    foreign: list[bytes] = []
    for field in fields(message):
        if field.number == _SEGMENT:
            fragment, rest = _read_segment(field.bytes)
            fragments.append(fragment)
            if rest is not None:
                foreign.append(rest)
        elif field.number == _CUSTOM_ENTRY:
            if not _read_custom(field, custom):
                foreign.append(field.raw)
        elif field.number == _PASSWORD:
            plain[_PASSWORD] = field.bytes
        elif field.number < _TOKEN:
            plain[field.number] = field.integer
        else:
            foreign.append(field.raw)
    return {
        **_read_numbers(plain),
        **_read_ours(custom),
        "fragments": fragments,
        "foreign": b64encode(b"".join(foreign)).decode(),
    }


def _read_numbers(plain: Mapping[int, int | bytes]) -> Plain:
    missing = [n for n in (_WRITE_QUORUM, _ENSEMBLE, _LENGTH, _STATE) if n not in plain]
    if missing:
        raise BadRecord(f"field {missing[0]} is missing")
    state = _known(_STATES, plain[_STATE], "the state")
    closed = state is LedgerState.CLOSED
    password = plain.get(_PASSWORD, b"")
    assert isinstance(password, bytes)
    return {
        "ensemble_size": plain[_ENSEMBLE],
        "write_quorum": plain[_WRITE_QUORUM],
        "ack_quorum": plain.get(_ACK_QUORUM, plain[_WRITE_QUORUM]),
        "state": state.value,
        "last_entry": plain.get(_LAST_ENTRY, -1) if closed else -1,
        "length": plain[_LENGTH] if closed else 0,
        "digest": _known(_DIGESTS, plain.get(_DIGEST, 1), "the digest"),
        "password": encode_password(password),
        "created_ms": plain.get(_CREATED, 0),
    }


def _known(names: Mapping[int, T], number: int | bytes, what: str) -> T:
    name = names.get(number) if isinstance(number, int) else None
    if name is None:
        raise BadRecord(f"{what} {number!r} is not known here")
    return name


def _read_segment(message: bytes) -> tuple[Plain, bytes | None]:
    """Return a fragment, and what is foreign in it as a segment of its own."""
    bookies: list[str] = []
    first: int | None = None
    foreign = b""
    for field in fields(message):
        if field.number == _MEMBER:
            bookies.append(field.text)
        elif field.number == _FIRST_ENTRY:
            first = field.integer
        else:
            foreign += field.raw
    if first is None:
        raise BadRecord("a segment has no first entry")
    kept = bytes_field(_SEGMENT, number_field(_FIRST_ENTRY, first) + foreign) if foreign else None
    return {"first_entry": first, "bookies": bookies}, kept


def _read_custom(entry: Field, custom: dict[str, str]) -> bool:
    """Add an entry of the user's or of ours; return False if it has to be kept as it is."""
    parts: dict[int, bytes] = {}
    for field in fields(entry.bytes):
        parts[field.number] = field.bytes if field.number in (_KEY, _VALUE) else b""
    try:
        key, value = parts.get(_KEY, b"").decode(), parts.get(_VALUE, b"").decode()
    except UnicodeDecodeError:
        return False
    of_later = key.startswith(OURS) and not key.startswith((_CUSTOM, *_OURS))
    if parts.keys() - {_KEY, _VALUE} or key in custom or of_later:
        return False
    custom[key] = value
    return True


def _read_ours(custom: Mapping[str, str]) -> Plain:
    incarnation = custom.get(_INCARNATION, "0")
    if not incarnation.isascii() or not incarnation.isdigit() or len(incarnation) > 19:
        raise BadRecord(f"{incarnation[:40]!r} is not an incarnation")
    return {
        "custom": {
            key.removeprefix(_CUSTOM): value for key, value in custom.items() if key not in _OURS
        },
        "replication": custom.get(_REPLICATION, "fanout"),
        "incarnation": int(incarnation),
    }


def _foreign(text: str) -> tuple[dict[int, bytes], bytes]:
    """Return what is foreign in segments, by first entry, and in the record itself."""
    segments: dict[int, bytes] = {}
    others = b""
    try:
        found = list(fields(b64decode(text, validate=True)))
    except ValueError as wrong:  # binascii.Error, or not ASCII
        raise BadRecord("the foreign part of a ledger is not base64") from wrong
    for field in found:
        if field.number == _SEGMENT:
            inside = list(fields(field.bytes))
            first = inside[0].integer if inside else -1
            segments[first] = b"".join(each.raw for each in inside[1:])
        else:
            others += field.raw
    return segments, others


# --- text --------------------------------------------------------------------------------


def _binary(text: TextFields, numbers: Mapping[str, int] = _TEXT_FIELDS) -> bytes:
    """Return a message in text form as binary; version 2 never had other fields than these."""
    message = b""
    for name, value in text:
        number = numbers.get(name)
        if number is None:
            raise BadRecord(f"no field has the name {name[:40]!r}")
        if isinstance(value, list):
            message += bytes_field(number, _binary(value, _TEXT_MESSAGES.get(name, {})))
        elif isinstance(value, bytes):
            message += bytes_field(number, value)
        elif isinstance(value, int):
            message += number_field(number, value)
        else:
            message += number_field(number, _TEXT_ENUMS.get(value, 0))
    return message


def _read_lines(body: bytes) -> Plain:
    """Return a ledger of version 1: quorum, ensemble size, length, segments, perhaps its end."""
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError:
        raise BadRecord("ledger metadata of version 1 is not text") from None
    quorum, ensemble, length = (_line_number(line) for line in [*lines, "", "", ""][:3])
    state, last_entry = LedgerState.OPEN, -1
    fragments: list[Plain] = []
    for line in lines[3:]:
        number, *words = line.split("\t")
        first = _line_number(number)
        if words == ["CLOSED"]:
            recovering = first == _IN_RECOVERY_ENTRY
            state = LedgerState.IN_RECOVERY if recovering else LedgerState.CLOSED
            last_entry = first
            break
        fragments.append({"first_entry": first, "bookies": words})
    closed = state is LedgerState.CLOSED
    return {
        "ensemble_size": ensemble,
        "write_quorum": quorum,
        "ack_quorum": quorum,
        "state": state.value,
        "fragments": fragments,
        "last_entry": last_entry if closed else -1,
        "length": length if closed else 0,
        "digest": "crc32",
        "created_ms": 0,
    }


def _line_number(text: str) -> int:
    if not _LINE_NUMBER.fullmatch(text):
        raise BadRecord(f"{text[:40]!r} is not a number")
    return int(text)
