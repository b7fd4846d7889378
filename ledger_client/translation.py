"""Calls to the metadata store in this package's terms: a deadline, and errors of a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ledger_client.errors import AccessDenied, MetadataBroken, MetadataUnavailable
from metadata import errors as metadata_errors


@contextmanager
def translated(limit_s: float) -> Iterator[None]:
    """Give the block *limit_s*, and let errors of the store leave as errors of a ledger.

    VersionConflict and LeaseLost leave as they are: whoever changes something deals with them.

    Raises:
        MetadataUnavailable: no answer in time; a change may have been made.
        AccessDenied: a bookie refuses the caller.
        MetadataBroken: the store refuses, or what it holds is damaged.
    """
    try:
        with trio.fail_after(limit_s):
            yield
    except trio.TooSlowError:
        raise MetadataUnavailable(f"metadata: no answer in {limit_s:g} s") from None
    except metadata_errors.MetadataUnavailable as wrong:
        raise MetadataUnavailable(f"metadata: {wrong}") from wrong
    except (metadata_errors.VersionConflict, metadata_errors.LeaseLost):
        raise
    except metadata_errors.AccessDenied as wrong:
        raise AccessDenied(str(wrong)) from wrong
    except metadata_errors.MetadataError as wrong:
        raise MetadataBroken(f"metadata: {wrong}") from wrong
