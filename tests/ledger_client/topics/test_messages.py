"""Messages as objects."""

from __future__ import annotations

import gc

import pytest

from ledger_client.topics.messages import CollectionPaused


@pytest.mark.parametrize("was_enabled", [True, False])
def test_collection_is_afterwards_what_it_was_before(was_enabled: bool) -> None:
    """Also after an error, and in a block within a block."""
    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(KeyError), CollectionPaused():
            with CollectionPaused():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()
