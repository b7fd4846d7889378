from __future__ import annotations

import pytest

from metadata import calls, errors
from metadata.failures import error_of, failure_of

ERRORS: list[errors.MetadataError] = [
    errors.VersionConflict(key="a", expected=1, found=0),
    errors.LeaseHeld(name="l", owner="o", expires_in_s=1.5),
    errors.LeaseLost(name="l", owner="o", epoch=3),
    errors.SessionOver(owner="o", epoch=3),
    errors.NotLeader(bookie_id="b1", address="h:3181"),
    errors.BadGroup("two modes"),
    errors.TimeRefused("time only moves forward"),
    errors.MetadataUnavailable("locked", outcome_unknown=True),
    errors.BadRecord("spoilt"),
    errors.MetadataBroken("damaged"),
    errors.BadAddress("no host"),
    errors.AccessDenied("bob"),
    errors.MetadataError("not here"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_crosses_the_wire_whole(error: errors.MetadataError) -> None:
    reply = calls.decode_reply(calls.encode_reply(failure_of(error)))
    assert isinstance(reply, calls.Failure)
    found = error_of(reply)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_every_error_is_tried_here() -> None:
    assert {type(error) for error in ERRORS} == {
        errors.MetadataError,
        *errors.MetadataError.__subclasses__(),
    }


def test_a_reply_of_another_kind_is_named() -> None:
    with pytest.raises(errors.BadRecord, match="answered Missing, not Done"):
        calls.expect(calls.Missing(), calls.Done)


@pytest.mark.parametrize(
    "failure",
    [
        calls.Failure("VersionConflict", "m"),
        calls.Failure("LeaseHeld", "m", {"name": "a", "owner": "b", "expires_in_s": "soon"}),
        calls.Failure("MetadataUnavailable", "m", {"outcome_unknown": True, "__class__": "y"}),
    ],
)
def test_a_failure_with_wrong_attributes_is_the_peers_fault(failure: calls.Failure) -> None:
    assert isinstance(error_of(failure), errors.BadRecord)


def test_a_failure_of_another_package_keeps_its_message() -> None:
    error = error_of(calls.Failure("NoLedger", "not here", {"ledger_id": 7}))
    assert type(error) is errors.MetadataError
    assert error.message == "not here"
