"""Ledger metadata in BookKeeper's format, on bytes that BookKeeper 4.18 wrote itself."""

from __future__ import annotations

from base64 import b64decode, b64encode

import msgspec
import pytest
from hypothesis import given, strategies as st

from metadata.errors import BadRecord
from metadata.records import Fragment, LedgerRecord, LedgerState, encode_password
from metadata.zookeeper.ledger_metadata import decode_metadata, encode_metadata
from metadata.zookeeper.protobuf import bytes_field, fields, number_field, varint

# LedgerMetadataSerDe.serialize() of one closed ledger, in each of its versions.
JAVA_3 = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a"
    "460803100318b009200b2803"
    "32110a03613a310a03623a320a03633a331000"
    "32110a03613a310a03623a320a03643a34100a"
    "380342027077480250d2095a060a01611201626063"
)
JAVA_2 = b"""BookieMetadataFormatVersion\t2
quorumSize: 3
ensembleSize: 3
length: 1200
lastEntryId: 11
state: CLOSED
segment {
  ensembleMember: "a:1"
  ensembleMember: "b:2"
  ensembleMember: "c:3"
  firstEntryId: 0
}
segment {
  ensembleMember: "a:1"
  ensembleMember: "b:2"
  ensembleMember: "d:4"
  firstEntryId: 10
}
digestType: CRC32C
password: "pw"
ackQuorumSize: 2
ctime: 1234
customMetadata {
  key: "a"
  value: "b"
}
"""
JAVA_1 = (
    b"BookieMetadataFormatVersion\t1\n3\n3\n1200\n0\ta:1\tb:2\tc:3\n10\ta:1\tb:2\td:4\n11\tCLOSED"
)
CLOSED = LedgerRecord(
    ledger_id=7,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    state=LedgerState.CLOSED,
    fragments=[Fragment(0, ["a:1", "b:2", "c:3"]), Fragment(10, ["a:1", "b:2", "d:4"])],
    last_entry=11,
    length=1200,
    digest="crc32c",
    password=encode_password(b"pw"),
    created_ms=1234,
    custom={"a": "b"},
)


def metadata(*parts: bytes) -> bytes:
    message = b"".join(parts)
    return b"BookieMetadataFormatVersion\t3\n" + varint(len(message)) + message


def without_foreign(record: LedgerRecord) -> LedgerRecord:
    return msgspec.structs.replace(record, foreign="")


def test_what_bookkeeper_wrote_is_read_in_every_version() -> None:
    assert without_foreign(decode_metadata(7, JAVA_3)) == CLOSED
    assert decode_metadata(7, JAVA_2) == CLOSED
    assert decode_metadata(7, JAVA_1) == msgspec.structs.replace(
        CLOSED, ack_quorum=3, digest="crc32", password="", created_ms=0, custom={}
    )


def test_a_record_is_written_back_byte_for_byte() -> None:
    assert encode_metadata(decode_metadata(7, JAVA_3)) == JAVA_3


def test_a_ledger_of_an_older_version_is_written_in_version_3() -> None:
    written = encode_metadata(decode_metadata(7, JAVA_2))
    assert written + varint(12 << 3) + varint(99) == JAVA_3.replace(b"\x0a\x46", b"\x0a\x44", 1)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_a_ledger_that_is_not_closed_has_no_end(state: LedgerState) -> None:
    number = {LedgerState.OPEN: 1, LedgerState.IN_RECOVERY: 2}[state]
    open_ledger = decode_metadata(7, JAVA_3.replace(b"\x28\x03", b"\x28" + bytes([number]), 1))
    assert (open_ledger.state, open_ledger.last_entry, open_ledger.length) == (state, -1, 0)


@pytest.mark.parametrize("last", [b"", b"10\tCLOSED", b"-102\tCLOSED"])
def test_version_1_tells_the_state_by_its_last_line(last: bytes) -> None:
    record = decode_metadata(7, b"BookieMetadataFormatVersion\t1\n1\n1\n5\n0\ta:1\n" + last)
    states = {b"": LedgerState.OPEN, b"10\tCLOSED": LedgerState.CLOSED}
    assert record.state is states.get(last, LedgerState.IN_RECOVERY)


ids = st.integers(0, (1 << 63) - 1)
records = st.builds(
    LedgerRecord,
    ledger_id=st.just(7),
    ensemble_size=st.just(2),
    write_quorum=st.just(2),
    ack_quorum=st.integers(1, 2),
    state=st.just(LedgerState.CLOSED),
    fragments=st.sets(st.integers(1, (1 << 63) - 1), max_size=3).map(
        lambda starts: [Fragment(start, ["b-1", "b-2"]) for start in [0, *sorted(starts)]]
    ),
    last_entry=st.integers(-1, (1 << 63) - 1),
    length=ids,
    digest=st.sampled_from(["crc32", "hmac", "crc32c", "dummy"]),
    password=st.binary().map(encode_password),
    created_ms=ids,
    custom=st.dictionaries(st.text() | st.sampled_from(["quire.replication", "quire."]), st.text()),
    replication=st.sampled_from(["fanout", "chain"]),
    incarnation=ids,
)


@given(records)
def test_every_record_of_ours_comes_back(record: LedgerRecord) -> None:
    assert decode_metadata(7, encode_metadata(record)) == record


def test_a_ledger_without_a_time_has_its_nodes() -> None:
    record = msgspec.structs.replace(CLOSED, created_ms=0)
    assert decode_metadata(7, encode_metadata(record), node_created_ms=55).created_ms == 55
    assert decode_metadata(7, JAVA_3, node_created_ms=55).created_ms == 1234


def test_fields_of_a_later_version_are_kept_when_the_record_changes() -> None:
    later_member = bytes_field(1, "a") + number_field(2, 0) + bytes_field(9, "of the segment")
    later_entry = bytes_field(1, "key") + bytes_field(2, "v") + number_field(3, 4)
    later = (
        bytes_field(6, later_member),
        bytes_field(11, later_entry),
        bytes_field(11, bytes_field(1, "k") + bytes_field(2, b"\xff\x00")),
        bytes_field(11, bytes_field(1, "quire.later") + bytes_field(2, "ours")),
        number_field(40, 5),
        bytes.fromhex("ad0201020304"),  # field 37, of 4 bytes
    )
    quorums = number_field(1, 1) + number_field(2, 1) + number_field(3, 0) + number_field(5, 1)
    found = decode_metadata(7, metadata(quorums, *later))
    assert found.custom == {}
    changed = msgspec.structs.replace(
        found, fragments=[*found.fragments, Fragment(4, ["b"])], state=LedgerState.IN_RECOVERY
    )
    written = encode_metadata(changed)
    values = [field.raw for field in fields(written[31:])]
    assert all(field in values for field in later)
    assert decode_metadata(7, written) == msgspec.structs.replace(changed, digest="crc32")


def test_every_truncation_and_every_flipped_bit_gives_a_record_or_bad_record() -> None:
    for data in (JAVA_3, JAVA_2, JAVA_1, encode_metadata(CLOSED)):
        for end in range(len(data)):
            decode_or_refuse(data[:end])
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            decode_or_refuse(bytes(flipped))
    for end in range(len(JAVA_3)):
        with pytest.raises(BadRecord):
            decode_metadata(7, JAVA_3[:end])


@given(st.binary(), st.integers(1, 3))
def test_noise_gives_a_record_or_bad_record(noise: bytes, version: int) -> None:
    decode_or_refuse(b"BookieMetadataFormatVersion\t%d\n" % version + noise)


def decode_or_refuse(data: bytes) -> None:
    try:
        record = decode_metadata(7, data)
    except BadRecord:
        return
    # What was read is a whole record, which can be written and read again.
    assert decode_metadata(7, encode_metadata(record)) == record
    b64decode(record.foreign, validate=True)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not begin ledger metadata"),
        (b"{}", "does not begin ledger metadata"),
        (b"BookieMetadataFormatVersion\t4\nxyz", "format version 4, newer than 3"),
        (b"BookieMetadataFormatVersion\t99999999999\n", "does not begin"),
        (JAVA_3 + b"\x00", "bytes were written"),
        (JAVA_3.replace(b"\x28\x03", b"\x28\x07", 1), "the state 7 is not known"),
        (JAVA_3.replace(b"\x38\x03", b"\x38\x09", 1), "the digest 9 is not known"),
        (metadata(number_field(1, 1)), "field 2 is missing"),
        (JAVA_2 + b"newField: 1", "no field has the name 'newField'"),
        (JAVA_3.replace(b"a:1", b"b:2", 1), "does not name as many bookies"),
    ],
)
def test_a_record_that_breaks_a_rule_is_refused_in_one_line(data: bytes, why: str) -> None:
    with pytest.raises(BadRecord, match=why) as wrong:
        decode_metadata(7, data)
    assert "\n" not in str(wrong.value)


def test_an_empty_foreign_segment_adds_nothing() -> None:
    empty = b64encode(bytes_field(6, b"")).decode()
    assert encode_metadata(msgspec.structs.replace(CLOSED, foreign=empty)) == encode_metadata(
        CLOSED
    )


@pytest.mark.parametrize("foreign", ["?", "é", "AA==", "CAE"])
def test_a_foreign_part_that_was_not_read_from_a_record_is_not_written(foreign: str) -> None:
    with pytest.raises(BadRecord):
        encode_metadata(msgspec.structs.replace(CLOSED, foreign=foreign))
