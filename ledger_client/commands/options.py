"""Options of commands: their value types, the shared ones, and those that are fields of structs.

An option that sets a field of a struct, such as a topic's retention or a reader's order, takes
its text, type, bounds and default from that field (FieldOption), so each is written once.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
import time
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal, TypedDict, Union, Unpack, get_args, get_origin

import click
import msgspec
from click.core import ParameterSource

from ledger_client.ledgers.writer import LedgerWriter
from ledger_client.wire.stores import TIMEOUT_S, timeout_of_calls_s
from metadata import cluster_options

Command = Callable[..., None]
OpenLedger = Callable[..., AbstractAsyncContextManager[LedgerWriter]]
"""client.ledgers.create"""

DEFAULT_CLUSTER = "bookie://127.0.0.1:3181"
TIMEOUT_S_MIN = 0.5
"""With less, a bookie that is only slow would count as away."""
UNLIMITED = ("-1", "unlimited")
NO_BOUND = 1 << 31
"""A field's upper bound from here on only keeps numbers within 64 bits; help leaves it out."""


# --- sizes ------------------------------------------------------------------------------

_DECIMAL = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS = _DECIMAL | _BINARY
_SIZE = re.compile(r"(\d{1,18})([A-Za-z]*)")


class SizeParam(click.ParamType[int]):
    """A size in bytes such as 100, 64KiB or 100MB, at least *lowest*.

    *unlimited* allows -1 and "unlimited".
    """

    name = "size"

    def __init__(self, *, lowest: int = 0, unlimited: bool = False) -> None:
        self._lowest = lowest
        self._unlimited = unlimited

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse a size; a bare number counts bytes."""
        text = str(value).replace(" ", "")
        if self._unlimited and text in UNLIMITED:
            return -1
        found = _SIZE.fullmatch(text)
        if found is None or found[2].upper() not in _UNITS:
            more = ", or -1 for no limit" if self._unlimited else ""
            self.fail(f"{value!r} is not a size; write 4096, 100MB or 64KiB{more}", param, ctx)
        size = int(found[1]) * _UNITS[found[2].upper()]
        if size < self._lowest:
            self.fail(f"{value!r} is less than {size_text(self._lowest)}", param, ctx)
        return size


def size_text(size: int) -> str:
    """Write a size so that SizeParam reads it back: "100MB", "64KiB", "7"."""
    for unit, factor in reversed(_BINARY.items()):
        if size > 0 and size % factor == 0:
            return f"{size // factor}{unit.replace('I', 'i')}"
    for unit, factor in reversed(_DECIMAL.items()):
        if size > 0 and factor > 1 and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


# --- durations and points in time -------------------------------------------------------

_DURATIONS_S = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LENGTH = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(s|min|h|d|w|)")
_NUMBER = re.compile(r"-?\d{1,19}")
SOONEST_NS = 10**17
"""A publish time below is a year, or in seconds, milliseconds or microseconds."""


class DurationParam(click.ParamType[float]):
    """Seconds, or a time such as 90s, 15min or 7d; *unlimited* allows -1 and "unlimited"."""

    name = "time"

    def __init__(self, *, unlimited: bool = False) -> None:
        self._unlimited = unlimited

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a duration; a bare number counts seconds."""
        text = str(value).replace(" ", "")
        if self._unlimited and text in UNLIMITED:
            return -1.0
        length_s = parse_duration(text)
        if length_s is None:
            more = ", or -1 for no limit" if self._unlimited else ""
            self.fail(f"{value!r} is not a duration; write 90s, 15min, 4h or 7d{more}", param, ctx)
        return length_s


class Ago(int):
    """Unix nanoseconds of a moment in the past, by this host's clock.

    The metadata store's clock may differ: commands that delete compute the moment from
    *length_ns* and the store's time.
    """

    length_ns: int

    @classmethod
    def of(cls, length_s: float) -> Ago:
        """Return the moment *length_s* seconds ago."""
        length_ns = round(length_s * 1e9)
        moment = cls(time.time_ns() - length_ns)
        moment.length_ns = length_ns
        return moment


class MomentParam(click.ParamType[int]):
    """A point in time as Unix nanoseconds: a date and time, a number, or how long ago.

    A date and time without an offset is UTC. *published*: messages are published at it, so a
    number that counts another unit than nanoseconds is refused.
    """

    name = "moment"

    def __init__(self, *, published: bool = False) -> None:
        self._published = published

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse a point in time; one relative to now becomes an Ago."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if _NUMBER.fullmatch(text):
            if self._published and 0 < int(text) < SOONEST_NS:
                self.fail(not_nanoseconds(int(text)), param, ctx)
            return int(text)
        length = text.removesuffix("ago").replace(" ", "")
        if length[-1:].isalpha():  # seconds with a fraction, as date +%s.%N writes, are no length
            length_s = parse_duration(length)
            if length_s is not None:
                return Ago.of(length_s)
        try:
            return nanoseconds_of(datetime.fromisoformat(text))
        except (ValueError, OverflowError):
            forms = "write 2024-05-01T12:00Z, nanoseconds since 1970, or 7d for 7 days ago"
            self.fail(f"{value!r} is not a point in time; {forms}", param, ctx)


def not_nanoseconds(number: int) -> str:
    """Explain why a number below SOONEST_NS is refused."""
    return (
        f"{number} nanoseconds since 1970 are before any publish time; write a date, as 2024-05-01"
    )


def parse_duration(text: str) -> float | None:
    """Return the seconds that *text* names, or `None` if it is not a duration."""
    found = _LENGTH.fullmatch(text)
    return None if found is None else float(found[1]) * _DURATIONS_S[found[2]]


def duration_text(seconds: float) -> str:
    """Write a duration so that DurationParam reads it back: "7d", "4h", "1.5s"."""
    for unit in ("d", "h", "min"):
        if seconds > 0 and seconds % _DURATIONS_S[unit] == 0:
            return f"{seconds / _DURATIONS_S[unit]:g}{unit}"
    return f"{seconds:g}s" if seconds > 0 else f"{seconds:g}"


def nanoseconds_of(moment: datetime) -> int:
    """Return Unix nanoseconds, exactly; a moment without a time zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


def moment_text(at_ns: int) -> str:
    """Write a point in time as "2024-05-01 12:00:00.5Z", or its number beyond the year 9999."""
    try:
        moment = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_ns)
    fraction = f"{at_ns % 1_000_000_000:09d}".rstrip("0")
    return f"{moment:%Y-%m-%d %H:%M:%S}{'.' + fraction if fraction else ''}Z"


# --- fields of structs ------------------------------------------------------------------


class ClickSettings(TypedDict, total=False):
    """Arguments of click.Option that a command may give or override."""

    type: click.ParamType[object] | type
    metavar: str
    multiple: bool
    is_flag: bool
    help: str
    default: object
    show_default: bool | str
    callback: Callable[[click.Context, click.Parameter, str], str]


def not_empty(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse an empty name that is given, such as that of a shell variable which is not set."""
    source = context.get_parameter_source(parameter.name or "")
    if not value and source is ParameterSource.COMMANDLINE:
        raise click.BadParameter("the name is empty", context, parameter)
    return value


class FieldOption(click.Option):
    """An option that sets one field of a struct, and has its text, type and default.

    Args:
        declarations: the option's names.
        struct: the struct.
        field: the name of its field.
        settings: click's settings, which override those derived from the field; a *default* of
            `None` means that the option was not given; the shown default is the field's.
    """

    def __init__(
        self,
        declarations: Sequence[str],
        *,
        struct: type[msgspec.Struct],
        field: str,
        **settings: Unpack[ClickSettings],
    ) -> None:
        self.struct = struct
        self.field = field
        found = next(each for each in msgspec.structs.fields(struct) if each.name == field)
        derived = _click_settings(field, found.type)
        derived["help"] = field_text(struct, field)
        if derived.get("multiple"):
            derived["help"] += " May be repeated."
        self.default_text = default_text(field, found.default)
        if self.default_text or found.default == "":
            derived["default"] = found.default
            derived["show_default"] = bool(self.default_text)
        super().__init__(declarations, **(derived | settings))

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        """Show the field's default as the command line takes it."""
        extra = super().get_help_extra(ctx)
        if self.show_default is True:
            extra["default"] = self.default_text
        return extra


def field_option(
    struct: type[msgspec.Struct],
    field: str,
    *names: str,
    **settings: Unpack[ClickSettings],
) -> Callable[[Command], Command]:
    """Return the decorator that adds a FieldOption."""
    return click.option(*names, cls=FieldOption, struct=struct, field=field, **settings)


def field_text(struct: type[msgspec.Struct], field: str) -> str:
    """Return the docstring of a struct's field as a sentence."""
    text = " ".join(_field_docstrings(struct)[field].split()).replace("*", "")
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


@functools.cache
def _field_docstrings(struct: type[msgspec.Struct]) -> dict[str, str]:
    [body] = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for node, after in zip(body.body, body.body[1:], strict=False):
        match node, after:
            case ast.AnnAssign(target=ast.Name(id=field)), ast.Expr(value=ast.Constant(value=text)):
                texts[field] = str(text)
    return texts


def default_text(field: str, default: object) -> str:
    """Write a field's default as the command line takes it; "" if there is none to show."""
    if isinstance(default, bool) or not isinstance(default, int | float | str):
        return ""
    if field.endswith("_s") and not isinstance(default, str):
        return duration_text(default)
    if field.endswith("size") and isinstance(default, int):
        return size_text(default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def _click_settings(field: str, annotation: object) -> ClickSettings:
    """Return click's settings for a field of this type."""
    kind, lowest, highest = _unwrapped(annotation)
    origin = get_origin(kind)
    if origin is Literal:
        return {"type": click.Choice(get_args(kind))}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": int if get_args(kind) == (int,) else str, "multiple": True}
    if kind is bool:
        return {"is_flag": True}
    if kind is int and field.endswith("size"):
        return {"type": SizeParam(unlimited=lowest == -1), "metavar": "SIZE"}
    if kind is float and field.endswith("_s"):
        return {"type": DurationParam(unlimited=lowest == -1), "metavar": "TIME"}
    if kind not in (int, float):
        return {"type": str}
    if lowest is None and highest is None:
        return {"type": int if kind is int else float}
    if kind is float:
        return {"type": click.FloatRange(lowest, highest), "metavar": "NUMBER"}
    low, high = (None if bound is None else int(bound) for bound in (lowest, highest))
    return {"type": click.IntRange(low, high), "metavar": "NUMBER"}


def _unwrapped(kind: object) -> tuple[object, float | None, float | None]:
    """Return a type without Annotated and None, and the bounds that Annotated gave it."""
    lowest = highest = None
    if get_origin(kind) is Annotated:
        kind, *metas = get_args(kind)
        for meta in metas:
            lowest, highest = getattr(meta, "ge", lowest), getattr(meta, "le", highest)
    if get_origin(kind) in (Union, types.UnionType):
        [kind] = [each for each in get_args(kind) if each is not type(None)]
    return kind, lowest, None if highest is not None and highest >= NO_BOUND else highest


# --- shared options ---------------------------------------------------------------------


def _shorten_calls(
    context: click.Context, parameter: click.Parameter, timeout_s: float | None
) -> None:
    if timeout_s is None:
        return
    if not TIMEOUT_S_MIN <= timeout_s <= TIMEOUT_S:
        bounds = f"{duration_text(TIMEOUT_S_MIN)} to {duration_text(TIMEOUT_S)}"
        raise click.BadParameter(f"it may be {bounds}", context, parameter)
    token = timeout_of_calls_s.set(timeout_s)
    context.call_on_close(partial(timeout_of_calls_s.reset, token))


_timeout = click.option(
    "--timeout",
    type=DurationParam(),
    metavar="TIME",
    expose_value=False,
    callback=_shorten_calls,
    show_default=duration_text(TIMEOUT_S),
    help="Give up on a question to the cluster about its metadata once no bookie has answered for"
    f" this long, at most {duration_text(TIMEOUT_S)}.",
)
cluster_alone = cluster_options.cluster(default=DEFAULT_CLUSTER, text=cluster_options.TEXT)
"""For a command that has a --timeout of its own."""


def cluster(command: Command) -> Command:
    """Add --cluster, --profile and --timeout."""
    return cluster_alone(_timeout(command))


class BytesParam(click.ParamType[bytes]):
    """Text as bytes in UTF-8; other bytes come as the shell passed them."""

    name = "text"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """Return the bytes. Python keeps those that are not UTF-8 as surrogates."""
        return value if isinstance(value, bytes) else str(value).encode(errors="surrogateescape")


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
password = click.option(
    "--password",
    envvar="QUIRE_PASSWORD",
    type=BytesParam(),
    default="",
    metavar="TEXT",
    help="Password of the ledger. QUIRE_PASSWORD sets it too, hidden from other users.",
)
topic = click.argument("name", metavar="NAMESPACE/NAME")
ledger_id = click.argument("ledger_id", metavar="LEDGER", type=click.IntRange(0, 2**63 - 1))

spark_master = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="Where Spark runs: local[N] within this process, or a Spark cluster.",
)
no_spark = click.option("--no-spark", is_flag=True, help="Run in this process instead of Spark.")


# --- options of ledgers -------------------------------------------------------------------

new_id = click.option(
    "--id",
    "new_id",
    type=click.IntRange(0, 2**63 - 1),
    metavar="LEDGER",
    show_default="a fresh one",
    help="Id of the new ledger, which must be free.",
)
digest = click.option(
    "--digest",
    type=click.Choice(["crc32c", "crc32", "hmac", "dummy"]),
    default="crc32c",
    show_default=True,
    help="End-to-end protection of entries; dummy means none.",
)
_ensemble = click.option(
    "--ensemble",
    type=int,
    default=3,
    show_default=True,
    help="Bookies that hold the ledger.",
)
_write_quorum = click.option(
    "--write-quorum",
    type=int,
    show_default="the ensemble",
    help="Copies of each entry.",
)
_ack_quorum = click.option(
    "--ack-quorum",
    type=int,
    show_default="more than half of the write quorum",
    help="Copies that must be durable before an entry is acknowledged.",
)


# --- a new ledger -----------------------------------------------------------------------


class Quorums(msgspec.Struct, frozen=True):
    """The three sizes of a ledger."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int


class NewLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger to create, as the command line describes it."""

    quorums: Quorums
    digest: str = "crc32c"
    password: bytes = b""
    ledger_id: int | None = None

    def create(self, create: OpenLedger) -> AbstractAsyncContextManager[LedgerWriter]:
        """Create the ledger and open it for writing; raises as Ledgers.create."""
        return create(
            self.quorums.ensemble_size,
            self.quorums.write_quorum,
            self.quorums.ack_quorum,
            password=self.password,
            digest=self.digest,
            ledger_id=self.ledger_id,
        )


def fill_quorums(ensemble: int, write_quorum: int | None, ack_quorum: int | None) -> Quorums:
    """Return the quorums, with defaults for those that were left out."""
    write = ensemble if write_quorum is None else write_quorum
    return Quorums(ensemble, write, write // 2 + 1 if ack_quorum is None else ack_quorum)


def quorums(command: Command) -> Command:
    """Add --ensemble, --write-quorum and --ack-quorum, which arrive as *quorums*."""

    @functools.wraps(command)
    def fill(
        *, ensemble: int, write_quorum: int | None, ack_quorum: int | None, **given: object
    ) -> None:
        command(quorums=fill_quorums(ensemble, write_quorum, ack_quorum), **given)

    return _ensemble(_write_quorum(_ack_quorum(fill)))


def new_ledger(command: Command) -> Command:
    """Add the options of a ledger to create, which arrive as *new*."""

    @functools.wraps(command)
    def describe(
        *, quorums: Quorums, digest: str, password: bytes, new_id: int | None, **given: object
    ) -> None:
        new = NewLedger(quorums=quorums, digest=digest, password=password, ledger_id=new_id)
        command(new=new, **given)

    return quorums(digest(password(new_id(describe))))
