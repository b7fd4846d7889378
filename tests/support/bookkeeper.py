"""BookKeeper's own client and shell, built by Maven from tests/interop, as processes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "interop"
BUILDS = SOURCES.parents[1] / "build" / "interop"
"""a folder for each version of what is built"""
SHELL = "org.apache.bookkeeper.bookie.BookieShell"
DEADLINE_S = 240
BUILD_S = 1200
"""the first build of a host downloads BookKeeper from Maven Central"""
JAVA = (
    *("java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),  # starts faster
)


class Failed(Exception):
    """BookKeeper's client reports an error, whose name is the message, or has ended."""


class BookKeeper:
    """BookKeeper 4.18. Its shell and its clients log to *folder*. Blocks until it is built."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        built = build()
        self.classpath = f"{built / 'classes'}:{(built / 'classpath').read_text().strip()}"

    def client(self, metadata: str) -> Client:
        """Start a client of the cluster whose ledgers are at *metadata*, for a with block."""
        return Client(self, metadata, self._folder / "client.log")

    def shell(self, metadata: str, *words: str) -> str:
        """Run a command of BookKeeper's shell; return what it said. Fails as it does."""
        conf = self._folder / "shell.conf"
        conf.write_text(
            f"metadataServiceUri={metadata}\nuseV2WireProtocol=true\nallowLoopback=true\n"
        )
        said = subprocess.run(
            [*JAVA, "-cp", self.classpath, SHELL, "-conf", str(conf), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        told = (said.stdout + said.stderr).decode()
        assert said.returncode == 0, told[-4000:]
        return told


class Client:
    """The program of tests/interop: a client that takes commands. Its calls block."""

    def __init__(self, bookkeeper: BookKeeper, metadata: str, log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*JAVA, "-cp", bookkeeper.classpath, "Peer", metadata],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )

    def __enter__(self) -> Client:
        try:
            assert self._answer() == ["ready"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self._process.stdin.close()
        self._process.stdout.close()

    def ask(self, *words: str | int) -> list[str]:
        """Give a command, return the words of its answer. Raises Failed."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        outcome, *told = self._answer()
        if outcome != "ok":
            raise Failed(" ".join(told))
        return told

    def number(self, *words: str | int) -> int:
        """Give a command that is answered with a number."""
        return int(self.ask(*words)[0])

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"it has ended: {self._log.read_text(errors='replace')[-4000:]}")
        return line.split()


def build() -> Path:
    """Return the folder of what Maven builds, ``classes`` and ``classpath``. Blocks.

    It is built once for a checkout, and again where something of it has changed or is gone.
    """
    for tool, package in (("java", "default-jdk-headless"), ("mvn", "maven")):
        assert shutil.which(tool), f"{tool} is missing: apt-get install {package}"
    inputs = sorted(path for path in SOURCES.rglob("*") if path.suffix in {".java", ".xml"})
    version = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()[:16]
    built = BUILDS / version
    if _is_whole(built):
        return built
    BUILDS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILDS, prefix=".new-") as work:
        pom = str(SOURCES / "pom.xml")
        said = subprocess.run(
            ["mvn", "-q", "-B", "-f", pom, f"-Dbuilt={work}/{version}", "compile"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=BUILD_S,
            check=False,
        )
        assert said.returncode == 0, (said.stdout + said.stderr).decode()[-4000:]
        if not _is_whole(built):
            shutil.rmtree(built, ignore_errors=True)
        try:
            Path(work, version).rename(built)
        except OSError:
            if not _is_whole(built):  # by another process, at the same time
                raise
    return built


def _is_whole(built: Path) -> bool:
    classpath = built / "classpath"
    return classpath.exists() and all(
        Path(jar).exists() for jar in classpath.read_text().strip().split(":")
    )


if __name__ == "__main__":
    build()
