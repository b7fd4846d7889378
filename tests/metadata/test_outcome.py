"""Questions of commands, and what is said if they are not answered with yes."""

from __future__ import annotations

import io
import sys

import click
import pytest

from metadata.outcome import confirm


class Terminal(io.StringIO):
    """An input that shows the answer itself, with its end of line."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answers", "end"),
    [
        (io.StringIO("n\n"), "\n"),
        (io.StringIO("\n"), "\n"),
        (io.StringIO(""), "\n"),
        (Terminal("n\n"), ""),
        (Terminal(""), "\n"),
    ],
)
def test_a_question_not_answered_with_yes_says_on_its_own_line_what_did_not_happen(
    answers: io.StringIO,
    end: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers.seek(0)
    monkeypatch.setattr(sys, "stdin", answers)
    with pytest.raises(click.Abort):
        confirm("Delete it?", refused="nothing was deleted")
    assert capsys.readouterr().err.removeprefix("Delete it? [y/N]:").strip(" ") == (
        f"{end}nothing was deleted\n"
    )


def test_a_question_answered_with_yes_lets_the_command_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    confirm("Delete it?", refused="nothing was deleted")
    assert "nothing" not in capsys.readouterr().err
