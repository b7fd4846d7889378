"""The file that the demonstration writes when none is named."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

# Logs that some machine or other keeps, the likelier ones first.
LOGS = (
    "/var/log/syslog",
    "/var/log/messages",
    "/var/log/dpkg.log",
    "/var/log/dnf.log",
    "/var/log/pacman.log",
    "/var/log/apt/term.log",
    "/var/log/bootstrap.log",
    "/var/log/install.log",
)
SIZE_MIN = 64 << 10
LINES = 50_000


class Sample(msgspec.Struct, frozen=True):
    """A file to write, and how it came to be."""

    path: Path
    generated: bool


def choose_sample(scratch: Path) -> Sample:
    """Return a log of this machine, or one generated in the folder *scratch*."""
    for name in LOGS:
        path = Path(name)
        if _is_worth_writing(path):
            return Sample(path, generated=False)
    return Sample(_generate(scratch / "generated.log"), generated=True)


def _is_worth_writing(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.seek(0, 2) >= SIZE_MIN
    except OSError:
        return False  # not here, or not ours to read


def _generate(path: Path) -> Path:
    choice = random.Random(LINES)
    hosts = [f"host-{number:02}" for number in range(20)]
    with path.open("w") as file:
        for number in range(LINES):
            seconds, millis = divmod(number * 37, 1000)
            took = choice.randrange(1, 900)
            file.write(
                f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{millis:03} "
                f"{choice.choice(hosts)} request={number} status=200 took_ms={took}\n"
            )
    return path
