"""The unit for systemd and the container file of the guide: parsed, and checked by what is here."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bookie.command_line import bookie as bookie_command

pytestmark = pytest.mark.facts

GUIDE = Path(__file__).resolve().parents[1] / "docs/guides/deploy.md"
INSTRUCTIONS = {
    *("FROM", "RUN", "COPY", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"),
}


def block(language: str) -> str:
    (found,) = re.findall(
        rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE
    )
    return str(found)


def check_words(words: Sequence[str]) -> None:
    """Fail unless *words* are a command of bookies with options that it has."""
    name, *arguments = words
    command = bookie_command.commands[name]
    context = command.make_context(name, [], resilient_parsing=True)
    command.make_parser(context).parse_args(list(arguments))


def test_the_unit_starts_a_command_that_there_is() -> None:
    unit = configparser.RawConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as the documentation says
    unit.read_string(block("ini"))
    assert unit.sections() == ["Unit", "Service", "Install"]
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program == "/opt/quire/bin/bookie"
    check_words(words)


# A container has no systemd, and its package would bring an init to each host that runs tests. The
# test above runs everywhere and decides; this one sees more where it can.
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd is not here: the unit is parsed by the test above alone",
)
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "quire-bookie.service"
    path.write_text(block("ini").replace("/opt/quire/bin", str(Path(sys.executable).parent)))
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_the_container_file_starts_a_command_that_there_is() -> None:
    lines = [line.split(" ", 1) for line in block("dockerfile").splitlines() if line]
    assert {instruction for instruction, _ in lines} <= INSTRUCTIONS
    stages = [rest.split(" AS ")[1] for instruction, rest in lines if " AS " in rest]
    copied = re.findall(r"--from=(\S+)", block("dockerfile"))
    assert set(copied) <= set(stages)
    last = {line[0]: line[1] for line in lines}
    assert json.loads(last["ENTRYPOINT"]) == ["bookie"]
    check_words(json.loads(last["CMD"]))


def test_the_commands_of_the_guide_have_options_that_there_are() -> None:
    text = GUIDE.read_text().replace("\\\n", " ")
    (words,) = re.findall(r"podman run .* quire +(run .*)$", text, re.MULTILINE)
    check_words(shlex.split(words))
