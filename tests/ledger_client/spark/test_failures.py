"""Errors taken out of what Spark tells; without Spark."""

from __future__ import annotations

import traceback

import pytest

from ledger_client.errors import (
    LedgerError,
    MetadataUnavailable,
    NoSuchTopic,
    SparkError,
)
from ledger_client.spark.failures import error_in, without_stack

STACK = """[PYTHON_DATA_SOURCE_ERROR] Failed to create it: Traceback (most recent call last):
  File "source.py", line 39, in schema
    with without_stack():
{}
 SQLSTATE: 38000"""


def told(line: str) -> LedgerError:
    return error_in(STACK.format(line))


def test_the_line_that_says_why_is_found() -> None:
    found = told("ledger_client.topics.errors.NoSuchTopic: topic a/b: no such topic")
    assert type(found) is SparkError
    assert str(found) == "topic a/b: no such topic"


@pytest.mark.parametrize("kind", [MetadataUnavailable, SparkError])
def test_an_error_made_of_its_message_is_itself_again(kind: type[LedgerError]) -> None:
    found = told(f"{kind.__module__}.{kind.__name__}: away")
    assert type(found) is kind
    assert str(found) == "away"


def test_the_last_of_several_counts() -> None:
    found = told("ledger_client.errors.MetadataUnavailable: a\nledger_client.errors.LedgerError: b")
    assert str(found) == "b"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("java.lang.OutOfMemoryError: Java heap space\n\tat x", "Java heap space"),
        ("[SOME] it is wrong. SQLSTATE: 42000\nmore", "[SOME] it is wrong."),
        ("", "it gave no reason"),
        ("ledger_client.none.Nothing: words", "words"),
    ],
)
def test_what_is_not_ours_is_a_line_too(text: str, line: str) -> None:
    assert str(error_in(text)) == line


def test_errors_of_ours_leave_with_one_place_of_their_stack_and_others_with_all() -> None:
    def fail(error: Exception) -> None:
        with without_stack():
            deep(error)

    def deep(error: Exception) -> None:
        raise error from KeyError("why")

    with pytest.raises(NoSuchTopic) as ours:
        fail(NoSuchTopic("a/b"))
    where = [frame.name for frame in traceback.extract_tb(ours.value.__traceback__)]
    assert where[-1] == "fail"
    text = "".join(traceback.format_exception(ours.value))
    assert "in deep" not in text
    assert "KeyError" not in text
    with pytest.raises(OSError, match="x") as others:
        fail(OSError("x"))
    assert "in deep" in "".join(traceback.format_exception(others.value))


def test_an_option_that_cannot_be_crosses_processes() -> None:
    import pickle

    found = pickle.loads(pickle.dumps(SparkError.option("lanes", "no")))
    assert str(found) == "option 'lanes': no"
