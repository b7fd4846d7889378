"""Alert rules as files: each says what to do, and is proven both ways."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest
from prometheus_server import tool

from bookie.command_line import bookie
from ledger_client.__main__ import quire

pytestmark = pytest.mark.facts

GRAFANA = Path(__file__).resolve().parents[2] / "grafana"
RULES = (GRAFANA / "alerts.yml").read_text().split("- alert: ")[1:]
CASES = (GRAFANA / "alerts_test.yml").read_text().split("- name: ")[1:]


def test_every_rule_says_what_it_means_and_what_to_do() -> None:
    assert len(RULES) > 20
    for rule in RULES:
        for part in ("summary", "description", "action"):
            assert re.search(rf"^ +{part}: >-\n +\S", rule, re.MULTILINE), rule.split()[0]
        assert re.search(r"severity: (critical|warning)\n", rule)


def test_rules_have_names_of_their_own() -> None:
    names = [rule.split()[0] for rule in RULES]
    assert len(set(names)) == len(names)


def test_every_rule_is_shown_to_fire_and_to_stay_quiet() -> None:
    fires = {_name(case) for case in CASES if "exp_labels" in case}
    quiet = {_name(case) for case in CASES if "exp_alerts: []" in case}
    assert fires == quiet == {rule.split()[0] for rule in RULES}


def _name(case: str) -> str:
    found = re.search(r"alertname: (\w+)", case)
    assert found is not None
    return found[1]


def test_every_command_that_is_advised_exists() -> None:
    advised = set(re.findall(r"`((?:bookie|quire) [a-z -]+)", " ".join("".join(RULES).split())))
    assert len(advised) > 8
    for words in advised:
        command: click.Command = {"bookie": bookie, "quire": quire}[words.split()[0]]
        for word in words.split()[1:]:
            if isinstance(command, click.Group):
                found = command.get_command(click.Context(command), word)
                assert found is not None, words
                command = found
            else:
                assert any(word in option.opts for option in command.params), words


@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
)
def test_promtool_finds_nothing_wrong(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [tool("promtool"), *words], cwd=GRAFANA, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
