"""Fuzz harnesses: built with clang over the C core, and run over a corpus."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CORE = REPOSITORY / "native"
HARNESSES = REPOSITORY / "tests" / "native" / "fuzz"
SHARED = ["folder", "bytes", "engines"]
"""Files of the harnesses' folder that each of them needs."""

MISSING = "clang with libFuzzer is needed: on Debian, install clang and libclang-rt-14-dev"
_SANITIZERS = "address,undefined"
_JOBS = 2


def compiler() -> str:
    """Return the path of clang, or fail saying what to install."""
    path = shutil.which("clang")
    assert path is not None, MISSING
    return path


def run(*command: str | Path, seconds: float = 300, folder: Path | None = None) -> str:
    """Run a command to its end and return what it printed; fail with that if it failed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        timeout=seconds,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, (
        f"{command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    )
    return done.stdout


class Build:
    """The core's object files, instrumented, and the harnesses linked from them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clang = compiler()
        sources = [*sorted(CORE.glob("*.c")), *(HARNESSES / f"{name}.c" for name in SHARED)]
        with ThreadPoolExecutor(_JOBS) as jobs:
            self._objects = list(jobs.map(self._compile, sources))

    def _compile(self, source: Path) -> Path:
        output = self._folder / f"{source.parent.name}-{source.stem}.o"
        run(
            self._clang,
            *("-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1"),
            *(f"-fsanitize=fuzzer-no-link,{_SANITIZERS}", "-fno-sanitize-recover=all"),
            *(f"-I{CORE}", f"-I{HARNESSES}", "-c"),
            source,
            "-o",
            output,
        )
        return output

    def link(self, harness: str) -> Path:
        """Return the program of the harness of this name."""
        program = self._folder / harness
        harness_object = self._compile(HARNESSES / f"{harness}.c")
        try:
            run(
                self._clang,
                f"-fsanitize=fuzzer,{_SANITIZERS}",
                *self._objects,
                harness_object,
                "-lpthread",
                "-o",
                program,
            )
        except AssertionError as wrong:
            if "libclang_rt" in str(wrong):
                raise AssertionError(f"{MISSING}\n{wrong}") from None
            raise
        return program


def fuzz(program: Path, corpus: Path, *, seconds: int) -> int:
    """Run a harness for so long and return how many inputs it took; fail on a finding.

    A finding is kept beside the corpus, in a file that the message names.
    """
    said = run(
        program,
        f"-max_total_time={seconds}",
        *("-timeout=20", "-max_len=65536", "-rss_limit_mb=1024", "-print_final_stats=1"),
        corpus,
        seconds=seconds + 120,
        folder=corpus.parent,
    )
    return next(_inputs(said))


def _inputs(said: str) -> Iterator[int]:
    for line in said.splitlines():
        if line.startswith("stat::number_of_executed_units:"):
            yield int(line.split(":")[-1])
