"""Sizes on the command line: 100, 64KiB, 10GiB."""

from __future__ import annotations

import re

import click

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(r"(\d{1,15})([A-Za-z]*)")


class Size(click.ParamType[int]):
    """Bytes, with an optional unit."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the bytes that *value* names."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(str(value).replace(" ", ""))
        if found is None or found[2].upper() not in _UNITS:
            self.fail(f"{value!r} is no size; write 4096, 64KiB, 10GiB", param, ctx)
        return int(found[1]) * _UNITS[found[2].upper()]


floor_size = click.option(
    "--floor-bytes",
    "floor_size",
    type=Size(),
    default="512MiB",
    show_default=True,
    help="How much to write and read to measure the disk itself.",
)
