"""The speed of the bare disk: how its measurement ends, and what it says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from ledger_client.__main__ import quire
from ledger_client.commands.bench import disk, spark as bench_spark
from ledger_client.commands.bench.disk import GROUP_SIZES, READ_SIZE, floor_of, measure_floor
from ledger_client.commands.outcome import conclude
from metadata.outcome import Exit

SIZE = 32 << 20
LOOK_S = 0.01
DEADLINE_S = 60.0


class Enough(Exception):
    """The measurement may end."""


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.fixture
def few_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a measurement be quick."""
    monkeypatch.setattr(disk, "SYNCS", 1)
    monkeypatch.setattr(disk, "GROUP_SIZES", GROUP_SIZES[-1:])


@pytest.mark.usefixtures("few_groups")
def test_a_measurement_can_end_before_each_access_to_the_disk(tmp_path: Path) -> None:
    calls = 2 + 1 + 2 + SIZE // READ_SIZE  # zeros, a single block, groups, and reading them

    def end_at(call: int) -> Callable[[], None]:
        left = iter(range(call, -1, -1))

        def check() -> None:
            if next(left) == 0:
                raise Enough

        return check

    for call in range(calls):
        with pytest.raises(Enough):
            measure_floor(tmp_path, SIZE, check=end_at(call))
        assert files(tmp_path) == []
    assert measure_floor(tmp_path, SIZE, check=end_at(calls)).read_mb_per_s > 0


@pytest.mark.usefixtures("few_groups")
async def test_a_cancelled_measurement_ends_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, token = trio.Event(), trio.lowlevel.current_trio_token()

    def read(_descriptor: int, _buffer: memoryview, _size: int, check: disk.Check) -> float:
        token.run_sync_soon(reading.set)
        while True:
            check()
            time.sleep(LOOK_S)

    monkeypatch.setattr(disk, "_read", read)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(floor_of, tmp_path, SIZE)
            await reading.wait()
            assert files(tmp_path)
            scope.cancel()
    assert scope.cancelled_caught
    assert files(tmp_path) == []


def send(number: signal.Signals) -> None:
    """Send this process a signal that ends the command, and not the tests."""
    assert signal.getsignal(number) is not signal.SIG_DFL
    os.kill(os.getpid(), number)


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.usefixtures("few_groups")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", ["disk", "append", "produce", "read", "consume", "replay"])
def test_a_signal_ends_the_measurement_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, number: signal.Signals
) -> None:
    def read(_descriptor: int, _buffer: memoryview, _size: int, check: disk.Check) -> float:
        send(number)
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            check()
            time.sleep(LOOK_S)
        return 1.0

    monkeypatch.setattr(disk, "_read", read)
    size = ["--bytes" if command == "disk" else "--floor-bytes", "16MiB"]
    words = ["bench", command, *size, "--folder", str(tmp_path)]
    assert conclude(quire, words) == Exit.INTERRUPTED
    assert files(tmp_path) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_benchmark_of_spark(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    tidied = False

    def measure(_plan: object) -> None:
        nonlocal tidied
        try:
            send(number)
            time.sleep(DEADLINE_S)
        finally:
            if number != signal.SIGINT:
                send(number)  # the second one does not cut the tidying short
            tidied = True

    monkeypatch.setattr(bench_spark, "_measure", measure)
    assert conclude(quire, ["bench", "spark"]) == Exit.INTERRUPTED
    assert tidied
    assert [signal.getsignal(each) for each in SIGNALS] == before


MEMORY = Path("/dev/shm")


@pytest.mark.usefixtures("few_groups")
def test_a_folder_in_memory_is_no_disk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(disk, "SPARED_SIZE", 0)  # in a container it may be small
    words = ["bench", "disk", "--bytes", "16MiB", "--folder", str(MEMORY)]
    assert conclude(quire, words) == Exit.DONE
    warning = f"{MEMORY} is memory and no disk (tmpfs): choose another --folder\n"
    assert capsys.readouterr().out.endswith(warning)
