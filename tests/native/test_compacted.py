"""Compacted entries: the documented bytes, a model, every cut, every flipped bit."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from batches import Sent, columns_of, messages_of, model as batch_model, plain, sent
from hypothesis import given, settings, strategies as st

from native import batch, compacted
from native.batch import Columns, Compression
from native.compacted import Origin, Origins, decode, encode, read_header, read_origins
from native.errors import Corrupt, TooLarge

DOCUMENTED = bytes.fromhex(
    "5143010001000000 0100000001000000 5100000051000000"
    "0100000000000000 0500000000000000 0100000000000000 0500000000000000 0200000002000000"
    "0900000000000000 0100000000000000 0500000000000000 6900000000000000"
    "e803000000000000 0500000000000000 e803000000000000"
    "0000000001000000 00000000 02000000 0000000001000000 70 00000000000000"
    "51420100 00000b00 00000000 01000000 1a000000 00000000 e803000000000000 0000000000000000"
    "0000000000000080 0000000000000080 ffffffffffffffff"
    "0000000002000000 0000000001000000 6b00000000000000 6869"
)
DOCUMENTED_ORIGIN = Origin(1, 9, 5, 105, 1000, 5, 1000, "p")
COMPRESSIONS: list[Compression] = ["none", "zstd", "lz4"]


def words(numbers: list[int], size: int = 8) -> bytes:
    """Return them little-endian."""
    return b"".join(number.to_bytes(size, "little", signed=True) for number in numbers)


def model(origins: list[Origin], indexes: list[int], messages: list[Sent]) -> bytes:
    """Return the payload that compacted.h describes."""
    names = list(dict.fromkeys(origin.producer for origin in origins))
    texts = [name.encode() for name in names]
    number, ledger, entry, version, created, sequence, order, producers, counts = zip(
        *origins, strict=True
    )
    columns = (ledger, number, entry, version, created, sequence, order)
    table = b"".join(words(list(column)) for column in columns)
    table += words([0, *accumulate(counts)], 4)
    table += words([names.index(name) for name in producers], 4) + words(indexes, 4)
    table += words([0, *accumulate(map(len, texts))], 4) + b"".join(texts)
    sizes = [len(messages), len(origins), len(names), len(table), len(table)]
    places = [number[0], entry[0], number[-1], entry[-1]]
    head = b"QC\1\0" + words(sizes, 4) + words(places) + words([indexes[0], indexes[-1]], 4)
    inner = bytearray(batch_model(messages))
    inner[24:32] = words([max(created)])
    return head + table + bytes(-len(table) % 8) + inner


class Kept(list[tuple[Origin, list[int], list[Sent]]]):
    """Origins, and of each its messages with their batch indexes."""

    @property
    def origins(self) -> list[Origin]:
        return [origin._replace(kept=len(indexes)) for origin, indexes, _ in self]

    @property
    def indexes(self) -> list[int]:
        return [index for _, indexes, _ in self for index in indexes]

    @property
    def messages(self) -> list[Sent]:
        return [message for _, _, messages in self for message in messages]

    def encode(self, compression: Compression = "none") -> bytes:
        return encode(
            Origins.of(self.origins),
            array("i", self.indexes),
            columns_of(self.messages),
            compression=compression,
        )


@st.composite
def kept(draw: st.DrawFn) -> Kept:
    """Draw what may be left of a lane."""
    number = entry = 0
    found = Kept()
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            number, entry = number + draw(st.integers(1, 3)), 0
        entry += draw(st.integers(1, 4))
        indexes = sorted(draw(st.sets(st.integers(0, 50), min_size=1, max_size=4)))
        if draw(st.integers(0, 4)) == 0:
            indexes = [-1]
        origin = Origin(
            number,
            100 + 7 * number,
            entry,
            draw(st.just(-1) | st.integers(0, 1 << 62)),
            draw(st.integers(0, 1 << 50)),
            draw(st.just(-1) | st.integers(0, 1 << 62)),
            draw(st.integers(-(1 << 63), (1 << 63) - 1)),
            draw(st.sampled_from(["", "p", "produzentin-ä"])),
        )
        found.append((origin, indexes, [draw(sent) for _ in indexes]))
    return found


def simple(count: int) -> Kept:
    """Return messages with everything they can have, of several entries."""
    messages = plain(count)
    found = Kept()
    for i, at in enumerate(range(0, count, 3)):
        some = messages[at : at + 3]
        origin = Origin(i // 4, 10 + i // 4, i, 50 + i, 1000 + i, 20 * i, i, f"p{i % 2}")
        found.append((origin, list(range(2, 2 + len(some))), some))
    return found


def test_the_documented_entry_is_what_encode_returns() -> None:
    payload = encode(
        Origins.of([DOCUMENTED_ORIGIN]), array("i", [2]), Columns.of([b"hi"], keys=[b"k"])
    )
    assert payload == DOCUMENTED
    assert payload == model([DOCUMENTED_ORIGIN], [2], [Sent(b"hi", b"k")])


def test_the_documented_entry_decodes_to_what_it_says() -> None:
    header, origins, indexes, decoded = decode(DOCUMENTED)
    assert (header.count, header.origins, header.first, header.last) == (1, 1, (1, 5, 2), (1, 5, 2))
    assert (list(origins), indexes.tolist()) == ([DOCUMENTED_ORIGIN], [2])
    assert messages_of(decoded.columns) == [Sent(b"hi", b"k")]
    assert header == read_header(DOCUMENTED)
    assert header.batch == decoded.header


@given(kept())
def test_every_entry_is_what_the_model_says(given_messages: Kept) -> None:
    assert given_messages.encode() == model(
        given_messages.origins, given_messages.indexes, given_messages.messages
    )


@given(kept(), st.sampled_from(COMPRESSIONS), st.integers(0, 7))
def test_what_was_encoded_comes_back_wherever_the_payload_lies(
    given_messages: Kept, compression: Compression, shift: int
) -> None:
    payload = memoryview(bytes(shift) + given_messages.encode(compression))[shift:]
    found = decode(payload)
    assert messages_of(found.decoded.columns) == given_messages.messages
    assert list(found.origins) == given_messages.origins
    assert found.batch_indexes.tolist() == given_messages.indexes
    origins, indexes = read_origins(payload)
    assert (list(origins), indexes) == (given_messages.origins, found.batch_indexes)
    assert read_header(payload) == found.header
    assert found.header.batch.created_ms == max(each.created_ms for each in origins)


@given(kept())
def test_each_message_is_told_what_its_origin_has(given_messages: Kept) -> None:
    origins = Origins.of(given_messages.origins)
    index = [i for i, (_, indexes, _) in enumerate(given_messages) for _ in indexes]
    assert origins.index.tolist() == index
    assert origins.spread(origins.versions).tolist() == [origins[i].version for i in index]
    assert origins.spread(origins.producers).tolist() == [origins.producers[i] for i in index]


def test_rows_that_are_named_are_taken_in_their_order() -> None:
    columns = Columns.of([b"a", b"b", b"c"])
    origins = Origins.of([Origin(0, 1, 0), Origin(0, 1, 1)])
    payload = encode(origins, array("i", [-1, 4]), columns, rows=array("I", [2, 0]))
    assert decode(payload).decoded.columns.values.to_list() == [b"c", b"a"]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_entry_tells_its_header_and_origins_without_its_batch(
    compression: Compression,
) -> None:
    given_messages = simple(300)
    payload = given_messages.encode(compression)
    assert len(payload) < len(given_messages.encode()) / 2
    head = payload.index(b"QB")
    damaged = payload[: head + 64] + bytes(len(payload) - head - 64)
    assert read_header(damaged) == decode(payload).header
    assert list(read_origins(damaged)[0]) == given_messages.origins
    with pytest.raises(Corrupt):
        decode(damaged)


# --- damage -----------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_truncated_entry_is_corrupt(compression: Compression) -> None:
    payload = simple(12).encode(compression)
    for size in range(len(payload)):
        with pytest.raises(Corrupt):
            decode(payload[:size])


def check(payload: bytes | bytearray) -> None:
    """Decode what may be damaged: it is told, or sound in itself."""
    try:
        found = decode(payload)
    except Corrupt:
        return
    count = found.header.count
    assert len(messages_of(found.decoded.columns)) == len(found.batch_indexes) == count
    assert len(found.origins.index) == count
    places = [(o.number, o.entry_id) for o in found.origins]
    assert places == sorted(set(places))
    assert all(found.origins[i].producer in found.origins.names for i in range(len(places)))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_no_flipped_bit_breaks_more_than_what_a_message_says(compression: Compression) -> None:
    payload = simple(9).encode(compression)
    for i in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[i // 8] ^= 1 << i % 8
        check(damaged)


@settings(max_examples=120)
@given(kept(), st.data())
def test_no_damaged_entry_is_read_out_of_bounds(given_messages: Kept, data: st.DataObject) -> None:
    payload = bytearray(given_messages.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    check(payload)


@pytest.mark.parametrize(
    ("at", "cells"),
    [
        pytest.param(0, b"X", id="magic"),
        pytest.param(2, b"\x02", id="a later version"),
        pytest.param(3, b"\x03", id="compression"),
        pytest.param(3, b"\x01", id="not compressed"),
        pytest.param(4, b"\x02", id="two messages"),
        pytest.param(4, bytes(4), id="no messages"),
        pytest.param(4, b"\xff\xff\xff\x7f", id="too many messages"),
        pytest.param(8, b"\x02", id="more origins than messages"),
        pytest.param(8, bytes(4), id="no origins"),
        pytest.param(12, b"\x02", id="more names than origins"),
        pytest.param(16, b"\x52", id="another table size"),
        pytest.param(16, b"\xff\xff\xff\xff\xff\xff\xff\xff", id="a huge table"),
        pytest.param(20, b"\x58", id="another stored size"),
        pytest.param(24, b"\x02", id="another first place"),
        pytest.param(40, b"\x02", id="another last place"),
        pytest.param(56, b"\x01", id="another batch index"),
        pytest.param(71, b"\x80", id="a negative ledger"),
        pytest.param(95, b"\x80", id="a version below -1"),
        pytest.param(111, b"\x80", id="a sequence below -1"),
        pytest.param(120, b"\x01", id="starts that do not begin with 0"),
        pytest.param(124, b"\x02", id="starts beyond the end"),
        pytest.param(128, b"\x01", id="a producer without a name"),
        pytest.param(140, b"\x02", id="a name beyond the end"),
        pytest.param(144, b"\xff", id="a name that is no text"),
        pytest.param(151, b"\x01", id="a gap that is not zero"),
        pytest.param(155, b"\x01", id="a batch of another kind"),
        pytest.param(208, b"\x00", id="a batch that counts"),
    ],
)
def test_what_no_encoder_writes_is_corrupt(at: int, cells: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(DOCUMENTED[:at] + cells + DOCUMENTED[at + len(cells) :])


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_table_of_another_size_than_the_header_says_is_damage(compression: Compression) -> None:
    payload = bytearray(simple(30).encode(compression))
    payload[16:20] = (int.from_bytes(payload[16:20], "little") + 8).to_bytes(4, "little")
    with pytest.raises(Corrupt, match="table"):
        decode(payload)


# --- limits -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origins", "indexes"),
    [
        pytest.param([Origin(0, 1, 5), Origin(0, 1, 5)], [0, 1], id="an origin twice"),
        pytest.param([Origin(1, 1, 0), Origin(0, 0, 5)], [0, 0], id="ledgers that go back"),
        pytest.param([Origin(0, 1, 0), Origin(1, 1, 0)], [0, 0], id="a ledger with two numbers"),
        pytest.param([Origin(0, 2, 0), Origin(1, 1, 0)], [0, 0], id="ledger ids that fall"),
        pytest.param([Origin(0, 1, 0, kept=2)], [1, 1], id="an index twice"),
        pytest.param([Origin(0, 1, 0, kept=2)], [-1, 1], id="no batch, and two messages"),
        pytest.param([Origin(0, 1, 0)], [-2], id="an index below -1"),
        pytest.param([Origin(0, 1, 0)], [batch.COUNT_MAX], id="an index over all"),
        pytest.param([Origin(-1, 1, 0)], [0], id="a negative number"),
        pytest.param([Origin(0, 1, 0, -2)], [0], id="a version below -1"),
        pytest.param([Origin(0, 1, 0, kept=0), Origin(0, 1, 1)], [0], id="an origin of none"),
    ],
)
def test_what_could_not_be_read_is_not_encoded(origins: list[Origin], indexes: list[int]) -> None:
    columns = Columns.of([b"v"] * len(indexes))
    with pytest.raises(ValueError, match="not in order"):
        encode(Origins.of(origins), array("i", indexes), columns)


def test_parts_of_different_lengths_are_refused() -> None:
    origins = Origins.of([Origin(0, 1, 0)])
    for indexes, columns in (([0], Columns.of([b"a", b"b"])), ([0, 1], Columns.of([b"a"]))):
        with pytest.raises(ValueError, match="1 of origins"):
            encode(origins, array("i", indexes), columns)
    with pytest.raises(ValueError, match="0 of origins"):
        encode(Origins.of([]), array("i"), Columns.of([b"a"]))


def test_the_largest_message_of_a_batch_fits_and_a_larger_one_is_refused() -> None:
    value = bytes(batch.SIZE_MAX - 64 - 8 - 8)
    columns = Columns.of([value])
    assert len(batch.encode(columns, 0, 1, producer=b"12345678")) == batch.SIZE_MAX
    origin = Origin(0, 1, 0, producer="12345678")
    assert len(encode(Origins.of([origin]), array("i", [0]), columns)) == compacted.SIZE_MAX
    for compression in COMPRESSIONS:
        with pytest.raises(TooLarge) as refused:
            encode(
                Origins.of([origin]),
                array("i", [0]),
                Columns.of([value + b"x"]),
                compression=compression,
            )
        assert refused.value.size_max == compacted.SIZE_MAX
