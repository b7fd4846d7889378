"""Fuzz harnesses: built with clang over the C core, and run over a corpus."""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CORE = REPOSITORY / "native"
HARNESSES = REPOSITORY / "tests" / "native" / "fuzz"
KEPT = HARNESSES / "kept"
"""By harness, a folder of inputs that the search found: the corpus has them beside the seeds."""
SHARED = ["folder", "bytes", "engines", "clock"]
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
            "-fno-sanitize-coverage=stack-depth",  # it depends on where the stack begins
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
                "-Wl,--wrap=bk_io_now_ns",  # clock.c
                "-lpthread",
                "-o",
                program,
            )
        except AssertionError as wrong:
            if "libclang_rt" in str(wrong):
                raise AssertionError(f"{MISSING}\n{wrong}") from None
            raise
        return program


def options(*more: str) -> list[str]:
    """Return what every run of a harness is given, and *more*."""
    common = ["-timeout=20", "-max_len=65536", "-rss_limit_mb=1024", "-print_final_stats=1"]
    return [*common, *more]


def try_some(program: Path, corpus: Path, *, count: int, seconds_max: float) -> int:
    """Try *count* inputs, the same ones each time; return how many; fail on a finding.

    The corpus is handed over as a list, since the order of files in a folder is the file
    system's. Hints by what is compared (-use_cmp) are left out: addresses are among them, which
    differ from run to run. A finding is kept beside the corpus, in a file that the message names.
    """
    files = ",".join(str(path) for path in sorted(corpus.iterdir()))
    said = run(
        program,
        *options("-seed=1", f"-runs={count}", "-use_cmp=0", f"-seed_inputs={files}"),
        seconds=seconds_max,
        folder=corpus.parent,
    )
    return inputs(said)


def inputs(said: str) -> int:
    """Return how many inputs a harness took, by what it printed; 0 if it did not say."""
    found = re.search(r"^stat::number_of_executed_units: *(\d+)", said, re.MULTILINE)
    return int(found[1]) if found else 0
