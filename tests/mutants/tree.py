"""A copy of the sources that may be mutated, and runs of tests against that copy.

Three things would hide a mutant: the editable install, whose finder leads every import back to
the original; the built core, which lies in site-packages; and compiled Python, which is taken as
current when size and second agree. So the copy's interpreter drops the finder (a
``sitecustomize``), the copy has a core of its own, and each change gets an mtime of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutant import ROOT, Mutant
from run_seed import VARIABLE
from search_processes import Ended, Processes

PACKAGES = ("bookie", "grafana", "ledger_client", "metadata", "native")

_FINDER_GOES = """\
import sys

sys.meta_path[:] = [
    each for each in sys.meta_path if not type(each).__name__.startswith("ScikitBuild")
]
"""
_JOBS = len(os.sched_getaffinity(0))


class DoesNotApply(Exception):
    """The patch does not fit the sources any more."""


class DoesNotBuild(Exception):
    """The mutated core does not compile; the message ends with the compiler's words."""


class Tree:
    """A copy of all that git knows, in *folder*; objects of the core are kept in *objects*."""

    def __init__(self, folder: Path, objects: Path, processes: Processes) -> None:
        self.root = folder / "quire"
        self._objects = objects
        self._processes = processes
        self._site = folder / "site"
        self._site.mkdir(parents=True)
        (self._site / "sitecustomize.py").write_text(_FINDER_GOES)
        self._copy()
        self._ticks = itertools.count(int(time.time()) - 1_000_000)

    def _copy(self) -> None:
        listed = _output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)

    def check(self) -> None:
        """Assert that this copy's code is what its tests import."""
        report = "import native._core as c, sys\n"
        report += "".join(f"import {each}; print({each}.__file__)\n" for each in PACKAGES)
        shown = subprocess.run(
            [sys.executable, "-c", f"{report}print(c.__file__)"],
            cwd="/",
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert all(Path(path).is_relative_to(self.root) for path in shown), shown

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Have *mutant* applied, and its core built, within the block.

        Raises:
            DoesNotApply: the sources changed since it was written.
            DoesNotBuild: the compiler refuses it.
        """
        self._apply(mutant)
        try:
            if mutant.is_native:
                self.build()
            yield
        finally:
            self._apply(mutant, "--reverse")

    def _apply(self, mutant: Mutant, *options: str) -> None:
        applied = subprocess.run(
            ["git", "apply", *options, str(mutant.path)],
            cwd=self.root,
            # Within some repository, git would pass over what lies outside of it.
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(self.root.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        if applied.returncode != 0:
            raise DoesNotApply(applied.stderr)
        tick = next(self._ticks)
        os.utime(self.root / mutant.file, (tick, tick))

    def build(self) -> None:
        """Make the core of what lies in this copy; objects of unchanged sources are reused.

        Raises:
            DoesNotBuild: the compiler's words.
        """
        core = Core(self.root / "native", self._objects)
        core.link(self.root / "native" / "_core.abi3.so")

    def test(self, names: Sequence[str], *, seconds: float, processes: int = 0) -> Ended:
        """Run tests in this copy: the same examples each time, and the same order of tasks.

        Everything that the run started is gone afterwards, whatever session it is in.

        Raises:
            Stopped: the search is over.
        """
        command = [sys.executable, "-m", "pytest", f"-n{processes}", "-q", "-x"]
        # A test that fails once kills: here nothing is tried a second time.
        command += ["--max-suite-reruns=0", "-p", "no:cacheprovider", *names]
        environment = self._environment()
        return self._processes.run(
            command, folder=self.root, seconds=seconds, environment=environment
        )

    def _environment(self) -> dict[str, str]:
        # Moved by QUIRE_SEED, tests would try other examples, and chance would decide.
        left_out = {"PYTHONPATH", VARIABLE}
        found = {name: value for name, value in os.environ.items() if name not in left_out}
        return {**found, "CI": "1", "PYTHONPATH": f"{self._site}{os.pathsep}{self.root}"}


class Core:
    """The core's objects, each named by what it is made of."""

    def __init__(self, sources: Path, objects: Path) -> None:
        self._sources = sources
        self._objects = objects
        objects.mkdir(parents=True, exist_ok=True)
        include = sysconfig.get_path("include")
        self._flags = ["-std=c11", "-O1", "-g", "-fPIC", "-pthread", "-w", "-D_GNU_SOURCE"]
        self._flags += ["-DBK_FAULTS"]
        self._flags += ["-DPy_LIMITED_API=0x030b0000", f"-I{sources}", f"-I{include}"]
        headers = b"".join(each.read_bytes() for each in sorted(sources.glob("*.h")))
        self._headers = hashlib.sha256(headers).hexdigest()

    def link(self, output: Path) -> None:
        """Write the extension module."""
        with ThreadPoolExecutor(_JOBS) as jobs:
            objects = list(jobs.map(self._compile, [*sorted(self._sources.glob("*.c"))]))
        objects.append(self._glue())
        fresh = output.with_suffix(".new")
        _compile("-shared", "-pthread", *objects, "-o", fresh)
        fresh.replace(output)  # a process may have the old one mapped

    def _compile(self, source: Path) -> Path:
        key = hashlib.sha256(f"{self._headers} {source.name} {self._flags[:-2]} ".encode())
        key.update(source.read_bytes())
        return self._object(source, key.hexdigest())

    def _object(self, source: Path, key: str) -> Path:
        made = self._objects / f"{source.stem}-{key[:24]}.o"
        if not made.exists():
            fresh = self._objects / f"{uuid.uuid4().hex}.o"
            _compile(*self._flags, "-c", source, "-o", fresh)
            fresh.replace(made)
        return made

    def _glue(self) -> Path:
        lists = (self._sources / "CMakeLists.txt").read_text()
        declared = re.search(r"set\(HEADERS ([^)]*)\)", lists)
        assert declared is not None
        made = self._objects / f"_core-{self._headers[:24]}.o"
        if not made.exists():
            folder = self._objects / uuid.uuid4().hex
            folder.mkdir()
            cdef, glue = folder / "cdef.h", folder / "_core.c"
            cdef.write_text("".join((self._sources / h).read_text() for h in declared[1].split()))
            command = [sys.executable, "-m", "cffi.gen_src", "read-sources", "native._core"]
            command += [str(cdef), str(self._sources / "internal.h"), str(glue)]
            subprocess.run(command, check=True, capture_output=True)
            self._object(glue, self._headers)
            shutil.rmtree(folder)
        return made


def _compile(*words: str | Path) -> None:
    compiler = os.environ.get("CC", "cc")
    done = subprocess.run([compiler, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DoesNotBuild(done.stderr[-2000:])


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
