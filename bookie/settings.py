"""Declaration of a setting: its text, unit and bounds; parsing and writing of its value.

``bookie.config`` declares the settings with this module, and the sample file is written
from the same declarations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB
DAY_S = 86_400

_UNITS = {"B": 1, "KIB": KiB, "MIB": MiB, "GIB": GiB, "TIB": TiB}
_SIZE = re.compile(r"\s*(\d{1,19})\s*([A-Za-z]*)\s*")

SWITCH = ("true", "false")
"""The choices of a setting that is a bool."""
_SWITCHED: dict[str | bool, bool] = {"true": True, "false": False, True: True, False: False}

Value = str | bool | int | float


class Setting(msgspec.Struct, frozen=True):
    """Explanation, unit and bounds of a setting; its type and default stand beside it.

    Attributes:
        text: effect of the setting and meaning of its edge values.
        unit: "" for plain text.
        low: smallest value allowed.
        high: largest value allowed.
        or_zero: 0 is allowed, too.
        choices: all values allowed; empty if *low* and *high* or *pattern* decide.
        pattern: a regular expression for text values, and the same rule in words.
        section: heading to print before this setting in the sample file, or "".
    """

    text: str
    unit: str = ""
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    pattern: tuple[str, str] = ("[^\0]*", "text")
    section: str = ""
    or_zero: bool = False

    @property
    def counts_bytes(self) -> bool:
        """Whether the value may be written as "64MiB"."""
        return self.unit.startswith("bytes")

    @property
    def allowed(self) -> str:
        """The values allowed, in words, for the sample file and for ConfigError."""
        if self.choices == SWITCH:
            return "true or false"
        if self.choices:
            return " or ".join(f'"{choice}"' for choice in self.choices)
        if not self.unit:
            return self.pattern[1]
        if self.counts_bytes:
            zero = "0, or " if self.or_zero else ""
            return f"{zero}{format_size(int(self.low))} to {format_size(int(self.high))}"
        return f"{self.low:g} to {self.high:.15g}"

    def parse(self, kind: type, value: object) -> Value | None:
        """Convert *value* to *kind*. Return None if that fails or the result is out of bounds."""
        try:
            parsed = self._converted(kind, value)
        except ValueError:
            return None
        return parsed if parsed is not None and self._allows(parsed) else None

    def _converted(self, kind: type, value: object) -> Value | None:
        if kind is bool:
            return _SWITCHED.get(value) if isinstance(value, str | bool) else None
        if isinstance(value, str) and kind is not str:
            if self.counts_bytes:
                return _parse_size(value)
            return int(value) if kind is int else float(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        if kind is float and isinstance(value, int):
            return float(value)
        return value if isinstance(value, kind) else None

    def _allows(self, value: Value) -> bool:
        if isinstance(value, bool):
            return True
        if self.choices:
            return value in self.choices
        if isinstance(value, str):
            return re.fullmatch(self.pattern[0], value, re.DOTALL) is not None
        if value == 0 and self.or_zero:
            return True
        return self.low <= value <= self.high  # False for a NaN


def format_size(size: int) -> str:
    """Format a size in bytes as the TOML file accepts it: 67108864 becomes "64MiB"."""
    for unit, factor in (("TiB", TiB), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _parse_size(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    factor = _UNITS.get(match[2].upper() or "B") if match else None
    return int(match[1]) * factor if match and factor else None


def write_sample(settings: Iterable[tuple[str, Setting, Value]]) -> str:
    """Return a TOML file with all *settings* (key, declaration, default) and their texts."""
    lines = [
        "# Settings of a bookie. Every line shows the default.",
        '# Sizes: bytes as a number, or text such as "64KiB", "64MiB", "1GiB". Times: seconds.',
    ]
    for key, setting, default in settings:
        if setting.section:
            lines += ["", f"### {setting.section}"]
        lines += ["", *(f"# {line}" for line in setting.text.split("\n"))]
        unit = f"Unit: {setting.unit}. " if setting.unit else ""
        if setting.unit or setting.choices:
            lines.append(f"# {unit}Allowed: {setting.allowed}.")
        lines.append(f"{key} = {_toml(setting, default)}")
    return "\n".join(lines) + "\n"


def _toml(setting: Setting, value: Value) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if setting.counts_bytes and isinstance(value, int):
        text = format_size(value)
        return text if text.isdigit() else f'"{text}"'
    return str(value)
