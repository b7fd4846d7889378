"""The Java that Spark would run on: found and tried before Spark is started.

Spark itself tells of a wrong Java by a page of its own, or by hanging; here it is one line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from ledger_client.spark.errors import JavaMissing, JavaTooOld

VERSION_MIN = 17
MODULE = "jdk.incubator.vector"
"""Spark loads it; run-times that were cut down lack it."""
TRY_S = 30.0
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_NEXT = f"install Java {VERSION_MIN} or later, or let JAVA_HOME name it"


def check_java() -> None:
    """Return if Spark can run on the Java that is here; takes a quarter of a second.

    Raises:
        JavaMissing: there is none, or it does not run.
        JavaTooOld: it is of a version before 17, or lacks a module.
    """
    java = _find()
    if _run(java, "--add-modules", MODULE, "-version").returncode == 0:
        version = _version(_run(java, "-version").stderr)
        if version is not None and version >= VERSION_MIN:
            return
    told = _run(java, "-version")
    version = _version(told.stderr)
    if told.returncode != 0 or version is None:
        raise JavaMissing(f"{java} does not run: {_last_line(told.stderr)}; {_NEXT}")
    if version < VERSION_MIN:
        raise JavaTooOld(f"{java} is Java {version}, and Spark needs {VERSION_MIN}; {_NEXT}")
    raise JavaTooOld(f"{java} lacks the module {MODULE}, which Spark needs; {_NEXT}")


def _find() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise JavaMissing(f"JAVA_HOME is {home}, and there is no bin/java in it; {_NEXT}")
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise JavaMissing(f"there is no Java here, and Spark needs it; {_NEXT}")
    return found


def _run(java: str, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [java, *words], capture_output=True, text=True, timeout=TRY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise JavaMissing(f"{java} does not run: {failure}; {_NEXT}") from failure


def _version(told: str) -> int | None:
    found = _VERSION.search(told)
    return None if found is None else int(found[1])


def _last_line(told: str) -> str:
    lines = told.strip().splitlines()
    return lines[-1].strip() if lines else "it says nothing"
