from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given, strategies

from ledger_client.commands import streams
from ledger_client.commands.streams import Frames, Lines, Splitter, join_framed, put
from metadata.outcome import CommandFailed

CHUNKS = strategies.lists(
    strategies.one_of(strategies.binary(max_size=40), strategies.sampled_from([b"\n", b"\r\n"]))
)


def split(splitter: Splitter, chunks: list[bytes]) -> list[bytes]:
    return [record for chunk in chunks for record in splitter.feed(chunk)] + splitter.finish()


@given(CHUNKS)
def test_lines_joined_are_the_same_bytes_however_they_arrived(chunks: list[bytes]) -> None:
    lines = split(Lines(1000), chunks)
    assert b"".join(lines) == b"".join(chunks)
    assert all(line.find(b"\n") in {-1, len(line) - 1} for line in lines)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a\n"]),
        (b"a\r\n\r\nb", [b"a\r\n", b"\r\n", b"b"]),
        (b"\n\n", [b"\n", b"\n"]),
        (b"a\rb\x0bc\x85\n", [b"a\rb\x0bc\x85\n"]),
    ],
)
def test_a_line_ends_with_a_line_feed_and_nothing_else(text: bytes, lines: list[bytes]) -> None:
    assert split(Lines(1000), [text]) == lines
    assert split(Lines(1000), [text[i : i + 1] for i in range(len(text))]) == lines


@pytest.mark.parametrize(
    "chunks",
    [[b"1234567"], [b"123", b"4567\n"], [b"ok\n1234567"], [b"12", b"34567\nok\n"], [b"1234567\n"]],
)
def test_a_line_longer_than_an_entry_is_refused(chunks: list[bytes]) -> None:
    with pytest.raises(CommandFailed, match="larger than an entry can be"):
        split(Lines(6), chunks)


def test_a_refused_line_is_named_by_its_number() -> None:
    with pytest.raises(CommandFailed, match="line 3 "):
        split(Lines(6), [b"1\n", b"2\n1234567\n4\n"])


@given(strategies.lists(strategies.binary(max_size=20)), strategies.integers(1, 9))
def test_framed_records_come_back_however_they_arrived(records: list[bytes], step: int) -> None:
    stream = join_framed(records)
    chunks = [stream[start : start + step] for start in range(0, len(stream), step)]
    assert split(Frames(1000), chunks) == records


def test_every_cut_of_a_framed_stream_is_noticed() -> None:
    stream = join_framed([b"one", b"", b"three"])
    whole = {len(join_framed([b"one", b"", b"three"][:count])) for count in range(4)}
    for end in set(range(len(stream))) - whole:
        with pytest.raises(CommandFailed, match="is it framed"):
            split(Frames(1000), [stream[:end]])


def test_a_framed_size_beyond_an_entry_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(CommandFailed, match="record 2 claims 7 bytes"):
        Frames(6).feed(join_framed([b"ok"]) + (7).to_bytes(4, "big"))


# --- to standard output -------------------------------------------------------------------


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of a pipe that is the standard output."""
    reads, writes = os.pipe()
    stdout = SimpleNamespace(fileno=lambda: writes)
    monkeypatch.setattr(streams, "sys", SimpleNamespace(stdout=stdout))
    yield reads
    os.close(reads)
    os.close(writes)


async def test_what_its_reader_has_is_written_though_the_reader_ended_the_command_at_once(
    reader: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a consumer would not commit what was printed."""
    token, write = trio.lowlevel.current_trio_token(), streams._write

    def write_and_be_cancelled(descriptor: int, data: bytes) -> None:
        write(descriptor, data)
        assert os.read(reader, 100) == data
        token.run_sync_soon(scope.cancel)
        is_cancelled.wait(60)

    monkeypatch.setattr(streams, "_write", write_and_be_cancelled)
    is_cancelled, is_printed = threading.Event(), False
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_once_cancelled, is_cancelled)
            await put(b"line\n")
            is_printed = True
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert is_printed


async def test_a_reader_that_reads_nothing_does_not_hold_the_end_back(reader: int) -> None:
    with trio.move_on_after(0.1) as scope:
        await put(bytes(1 << 20))
    assert scope.cancelled_caught


async def _set_once_cancelled(event: threading.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        event.set()
