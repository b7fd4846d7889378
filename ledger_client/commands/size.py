"""Sizes on the command line: 100, 64KiB, 100MB."""

from __future__ import annotations

import re

import click

from ledger_client.commands.moment import UNLIMITED

_DECIMAL = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS = _DECIMAL | _BINARY
_SIZE = re.compile(r"(\d{1,18})([A-Za-z]*)")


class Size(click.ParamType[int]):
    """Bytes, with an optional unit; *unlimited*: -1 and "unlimited" are allowed too."""

    name = "size"

    def __init__(self, *, unlimited: bool = False) -> None:
        self._unlimited = unlimited

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the bytes that *value* names."""
        text = str(value).replace(" ", "")
        if self._unlimited and text in UNLIMITED:
            return -1
        found = _SIZE.fullmatch(text)
        if found is None or found[2].upper() not in _UNITS:
            more = ", -1 for no limit" if self._unlimited else ""
            self.fail(f"{value!r} is no size; write 4096, 100MB, 64KiB{more}", param, ctx)
        return int(found[1]) * _UNITS[found[2].upper()]
