"""The C core compiles without warnings with clang as well, with the build's own flags."""

from __future__ import annotations

import re

import pytest
from fuzzing import CORE, compiler, run

pytestmark = pytest.mark.facts


def warning_flags() -> list[str]:
    """The flags that CMakeLists.txt gives to our files."""
    listed = re.search(r'"(-Wall;[^"]*)"', (CORE / "CMakeLists.txt").read_text())
    assert listed is not None
    return listed[1].split(";")


@pytest.mark.parametrize("build", [(), ("-DBK_FAULTS",)], ids=["plain", "with faults"])
def test_clang_finds_nothing_to_warn_of(build: tuple[str, ...]) -> None:
    flags = warning_flags()
    assert "-Werror" in flags
    run(
        compiler(),
        *("-std=gnu11", "-D_GNU_SOURCE", "-fsyntax-only", *flags, *build, f"-I{CORE}"),
        *sorted(CORE.glob("*.c")),
    )
