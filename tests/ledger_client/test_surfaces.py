"""The generated surfaces: current, complete, with the signatures of what they call."""

from __future__ import annotations

import inspect
import typing

import pyarrow as pa
import pytest
from surfaces import (
    AIO,
    BLOCKING,
    NOUNS,
    SETTINGS,
    Noun,
    Surface,
    generated,
    path_of,
    settings_path,
    with_settings,
)

from ledger_client import aio, blocking

pytestmark = pytest.mark.facts

REMEDY = "run: python tests/support/surfaces.py --write"
MODULES = {"blocking": blocking, "aio": aio}


@pytest.mark.parametrize("surface", [BLOCKING, AIO], ids=lambda surface: surface.name)
def test_a_surface_is_current(surface: Surface) -> None:
    assert path_of(surface).read_text() == generated(surface), REMEDY


@pytest.mark.parametrize("module", SETTINGS)
def test_keyword_arguments_are_the_fields_of_their_struct(module: str) -> None:
    assert settings_path(module).read_text() == with_settings(module), REMEDY


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.name)
def test_both_surfaces_have_the_same_calls_with_the_same_arguments(noun: Noun) -> None:
    twins = [
        getattr(MODULES[surface.name], surface.prefix + noun.twin) for surface in (BLOCKING, AIO)
    ]
    names = [{name for name in vars(twin) if not name.startswith("_")} for twin in twins]
    assert names[0] == names[1]
    for name in names[0]:
        calls = [inspect.getattr_static(twin, name) for twin in twins]
        if not isinstance(calls[0], property):
            told = [inspect.signature(call).parameters.values() for call in calls]
            shown = [[(each.name, each.kind, each.annotation) for each in one] for one in told]
            assert shown[0] == shown[1]
            assert typing.get_type_hints(calls[0], localns={"pa": pa})
