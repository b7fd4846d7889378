"""The settings of a bookie: one frozen struct, one TOML file, no environment.

Every setting is declared once, here, with its unit, default, bounds and what its edge
values mean. From that declaration come the checks, the messages of ConfigError and
the sample file ``bookie.toml`` (``bookie config`` prints it).

    defaults  ◄─ bookie.toml  ◄─ --set key=value and direct options
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, get_type_hints

import msgspec

from bookie.errors import BookieError
from bookie.settings import DAY_S, SWITCH, GiB, KiB, MiB, Setting, TiB, Value, write_sample
from metadata.address import DEFAULT_PORT

_ID = r"|[A-Za-z0-9][A-Za-z0-9._:\[\]-]{0,127}"
_RACK = r"|[A-Za-z0-9/][A-Za-z0-9._:/-]{0,63}"
_COMMAND_LINE = "the command line"
RATE_MIN = 64 * KiB
"""Bytes a second: with less, as with 50 that were meant as MiB, nothing would ever be done."""


class ConfigError(BookieError):
    """A setting is unknown, of the wrong type or out of bounds.

    Attributes:
        source: the path of the file, or "the command line".
        key: the name of the setting, or "" if the file cannot be read or parsed.
    """

    def __init__(self, source: str, key: str, problem: str) -> None:
        super().__init__(f"{source}: {key}: {problem}" if key else f"{source}: {problem}")
        self.source = source
        self.key = key


class BookieConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one bookie. Sizes are in bytes; names that end in ``_s`` are seconds.

    ``load_config`` checks the values and fills in the folders. A struct built directly is
    not checked.
    """

    bookie_id: Annotated[
        str,
        Setting(
            "Name of this bookie in ledger records. It never changes, even if the bookie moves.\n"
            'Empty: the name in the cookie; a new bookie gets "bookie-" and 8 random digits.',
            pattern=(_ID, "up to 128 letters, digits and . _ : - [ ]"),
            section="Who and where",
        ),
    ] = ""
    host: Annotated[str, Setting('Address to listen on. "0.0.0.0" or "::" for all interfaces.')] = (
        "127.0.0.1"
    )
    port: Annotated[int, Setting("TCP port to listen on. 0: any free one.", "port", 0, 65535)] = (
        3181
    )
    advertised_address: Annotated[
        str,
        Setting(
            'The "host:port" that clients connect to. Empty: the host and port listened on. Set\n'
            "it if the host is a wildcard or behind address translation."
        ),
    ] = ""
    rack: Annotated[
        str,
        Setting(
            "What this bookie shares a switch or a power supply with, such as r1 or hall2/r1. The\n"
            "copies of an entry are on as many racks as possible. Empty: one rack for all bookies\n"
            "that state none. It may change with a restart.",
            pattern=(_RACK, "up to 64 letters, digits and . _ : - /"),
        ),
    ] = ""
    metadata: Annotated[
        str,
        Setting(
            'Metadata store that holds the ledger records: "sqlite:///absolute/path" for\n'
            'bookies of one host, "zk://host:2181,host:2181/path" for those of many. All bookies\n'
            "of a cluster use the same one. Empty: metadata.db in the data folder, for a cluster\n"
            "of one bookie. A login to ZooKeeper: zk://user@host/path?password-file=FILE, or the\n"
            "password in QUIRE_ZOOKEEPER_PASSWORD; TLS: zk+tls://host/path?ca=FILE."
        ),
    ] = ""
    data_folder: Annotated[
        str,
        Setting(
            "Folder of this bookie. Required. Its subfolder security, if present, holds the TLS\n"
            "files and the users. Relative paths start at the folder of this file."
        ),
    ] = ""
    journal_folder: Annotated[
        str,
        Setting(
            "Folder of the journal, ideally on its own disk. Empty: journal in the data folder."
        ),
    ] = ""
    ledger_folder: Annotated[
        str,
        Setting(
            "Folder of the entry logs, their indexes and the mark. Empty: ledgers in the data\n"
            "folder."
        ),
    ] = ""

    memtable_size: Annotated[
        int,
        Setting(
            "Size of one half of the memtable; the two halves use twice this much memory. A full\n"
            "half is flushed to the entry log while the other one fills.",
            "bytes",
            10 * MiB,
            GiB,
            section="Storage",
        ),
    ] = 64 * MiB
    journal_size_max: Annotated[
        int,
        Setting(
            "Start a new journal file at this size. That happens only when the memtable switches\n"
            "halves, so a file may exceed the limit by one half.",
            "bytes",
            MiB,
            64 * GiB,
        ),
    ] = GiB
    journal_spares: Annotated[
        int,
        Setting(
            "Old journal files to keep for reuse, which is faster than creating new ones. 0: none.",
            "files",
            0,
            1000,
        ),
    ] = 2
    log_size_max: Annotated[
        int,
        Setting("Start a new entry log at this size.", "bytes", MiB, 2 * GiB),
    ] = GiB
    index_cache_size: Annotated[
        int,
        Setting("Memory for cached index pages. 0: no cache.", "bytes", 0, 64 * GiB),
    ] = 32 * MiB
    checkpoint_interval_s: Annotated[
        float,
        Setting(
            "Flush the memtable this often even if it is not full. This bounds how much of the\n"
            "journal a restart replays. 0: flush only when it is full.",
            "seconds",
            0,
            DAY_S,
        ),
    ] = 60.0

    connections_max: Annotated[
        int,
        Setting(
            "Connections served at the same time; one client address may use three quarters of\n"
            "them. A further one takes the place of the one that has been idle longest, or is\n"
            "closed at once if none is idle. Bookies of the cluster get an eighth as many in\n"
            "addition. Connections that have not logged in, or have sent nothing yet, do not\n"
            "count; a quarter as many of those are allowed in addition. With too few file\n"
            "descriptors (ulimit -n), the bookie lowers the limit and logs that.",
            "connections",
            1,
            100_000,
            section="Limits on clients",
        ),
    ] = 1000
    connection_bytes_max: Annotated[
        int,
        Setting(
            "Unsynced and unsent bytes allowed for one connection. At the limit, the bookie stops\n"
            "reading from it.",
            "bytes",
            MiB,
            4 * GiB,
        ),
    ] = 32 * MiB
    bytes_in_flight_max: Annotated[
        int,
        Setting(
            "The same limit for all connections together: half for adds, an eighth for incomplete\n"
            "frames, a quarter for responses not yet sent, an eighth for responses being made.\n"
            "One client address may use half of each share.",
            "bytes",
            MiB,
            64 * GiB,
        ),
    ] = 256 * MiB
    peer_timeout_s: Annotated[
        float,
        Setting(
            "Close a connection that leaves a frame unfinished or does not read its responses for\n"
            "this long, or for 5 s while others wait for the memory it holds. A login may take\n"
            "10 s at most. 0: only the limits of 5 s and 10 s apply.",
            "seconds",
            0,
            DAY_S,
        ),
    ] = 30.0
    idle_timeout_s: Annotated[
        float,
        Setting(
            "Close a connection that has sent nothing for this long. 0: never.",
            "seconds",
            0,
            30 * DAY_S,
        ),
    ] = 0.0
    read_workers: Annotated[
        int, Setting("Threads for reads that go to disk.", "threads", 1, 256)
    ] = 4

    gc_interval_s: Annotated[
        float,
        Setting(
            "How often to look for ledgers that were deleted from the metadata, and free their\n"
            "space. 0: only when `bookie gc` asks for it.",
            "seconds",
            0,
            30 * DAY_S,
            section="Garbage collection",
        ),
    ] = 900.0
    gc_foreign_ledgers: Annotated[
        str,
        Setting(
            "What to do with ledgers that never were in the metadata, because a client used the\n"
            'wire protocol alone: "keep" them, or "delete" them like deleted ledgers. Such a\n'
            "client can create ledgers under ids from 2^62 up, with metadata in ZooKeeper none.",
            choices=("keep", "delete"),
        ),
    ] = "keep"
    minor_threshold: Annotated[
        float,
        Setting(
            "Minor compaction rewrites entry logs with less than this share of live data. 0: off.",
            "share",
            0,
            1,
        ),
    ] = 0.2
    minor_interval_s: Annotated[
        float, Setting("Time between minor compactions. 0: off.", "seconds", 0, 365 * DAY_S)
    ] = 3600.0
    major_threshold: Annotated[
        float,
        Setting(
            "Major compaction rewrites entry logs with less than this share of live data. 0: off.",
            "share",
            0,
            1,
        ),
    ] = 0.8
    major_interval_s: Annotated[
        float, Setting("Time between major compactions. 0: off.", "seconds", 0, 365 * DAY_S)
    ] = 86400.0
    compaction_rate: Annotated[
        int,
        Setting(
            "How fast compaction copies data. 0: no limit.",
            "bytes a second",
            RATE_MIN,
            TiB,
            or_zero=True,
        ),
    ] = 100 * MiB

    disk_full_ratio: Annotated[
        float,
        Setting(
            "Become read-only when this share of the disk is used. 1: never.",
            "share",
            0.01,
            1,
            section="Full disk",
        ),
    ] = 0.95
    disk_warn_ratio: Annotated[
        float,
        Setting(
            "Log a warning and postpone major compaction when this share of the disk is used.",
            "share",
            0.01,
            1,
        ),
    ] = 0.90
    disk_reserve: Annotated[
        int,
        Setting(
            "Become read-only when less than this and two memtables is free. While read-only,\n"
            "accept the adds of a recovery as long as this many bytes are free.",
            "bytes",
            0,
            TiB,
        ),
    ] = GiB
    disk_check_s: Annotated[
        float, Setting("How often to check how full the disk is.", "seconds", 0.01, 3600)
    ] = 10.0

    autorecovery: Annotated[
        bool,
        Setting(
            "Lead the cluster when elected, and help to copy entries that have too few copies\n"
            "left. With this off on all bookies nobody leads: there are no groups, timestamps,\n"
            "repair or retention. A bookie in limbo stays in it. To keep copies from being made\n"
            "while bookies are down on purpose, raise lost_after_s instead.",
            choices=SWITCH,
            section="Repair",
        ),
    ] = True
    repair_rate_max: Annotated[
        int,
        Setting(
            "How fast this bookie copies entries to others for repair. Writes and reads of\n"
            "clients take precedence. 0: no limit.",
            "bytes a second",
            RATE_MIN,
            TiB,
            or_zero=True,
        ),
    ] = 50 * MiB
    lost_after_s: Annotated[
        float,
        Setting(
            "Treat a bookie as lost when it has not been registered for this long, and copy its\n"
            "entries to other bookies. Set it longer than a restart takes. 0: lost as soon as its\n"
            "registration ends.",
            "seconds",
            0,
            30 * DAY_S,
        ),
    ] = 60.0
    open_grace_s: Annotated[
        float,
        Setting(
            "Close an open ledger with a lost bookie after this long, which fences its writer. A\n"
            "live writer replaces the bookie itself before that. 0: at once.",
            "seconds",
            0,
            30 * DAY_S,
        ),
    ] = 30.0
    scrub_rate: Annotated[
        int,
        Setting(
            "How fast to read closed entry logs in search of damage, at most once a day. 0: never.",
            "bytes a second",
            RATE_MIN,
            TiB,
            or_zero=True,
        ),
    ] = 10 * MiB

    lease_ttl_s: Annotated[
        float,
        Setting(
            "How long the registration of a bookie lasts after the bookie died.",
            "seconds",
            0.1,
            3600,
            section="Running",
        ),
    ] = 10.0
    metrics_port: Annotated[
        int,
        Setting(
            "HTTP port for /metrics, /health and /ready. 0: none. -1: any free one.",
            "port",
            -1,
            65535,
        ),
    ] = 0
    stop_timeout_s: Annotated[
        float,
        Setting(
            "Time allowed for an orderly stop. Entries not flushed by then are replayed from the\n"
            "journal at the next start.",
            "seconds",
            0,
            3600,
        ),
    ] = 30.0
    log_level: Annotated[
        str,
        Setting(
            "How much is logged to standard error.",
            choices=("debug", "info", "warning", "error"),
        ),
    ] = "info"


_HINTS = get_type_hints(BookieConfig, include_extras=True)
_SETTINGS: dict[str, Setting] = {key: hint.__metadata__[0] for key, hint in _HINTS.items()}


def sample_file() -> str:
    """Return the text of bookie.toml: every setting with its explanation and default."""
    return write_sample(settings())


def settings() -> Iterator[tuple[str, Setting, Value]]:
    """Yield key, declaration and default of every setting, in the order of the sample file."""
    defaults = BookieConfig()
    for key, setting in _SETTINGS.items():
        yield key, setting, getattr(defaults, key)


def load_config(path: Path | None, overrides: Mapping[str, object] | None = None) -> BookieConfig:
    """Read the settings from the file at *path*, if any; *overrides* win over the file.

    Values of *overrides* may be text, as on a command line. Empty folders and an empty
    metadata URL are filled in. A relative folder counts from the folder of the file, or
    from the current one if it comes from *overrides*. Blocks for one small file.

    Raises:
        ConfigError: a setting is wrong; the message fits one line and says what is allowed.
    """
    source = str(path) if path else _COMMAND_LINE
    values: dict[str, Value] = {}
    if path is not None:
        values |= _checked(source, _read(path), path.absolute().parent)
    values |= _checked(_COMMAND_LINE, overrides or {}, Path.cwd())
    config = _with_folders(msgspec.structs.replace(BookieConfig(), **values), source)
    _check_pairs(config, source)
    return config


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise ConfigError(str(path), "", f"not TOML: {cause}") from cause
    except OSError as cause:
        raise ConfigError(str(path), "", f"cannot be read: {cause.strerror}") from cause


def _checked(source: str, values: Mapping[str, object], folder: Path) -> dict[str, Value]:
    checked = {}
    for key, value in values.items():
        if key not in _SETTINGS:
            raise ConfigError(source, key, f"no such setting{_nearest(key)}")
        setting = _SETTINGS[key]
        parsed = setting.parse(_HINTS[key].__origin__, value)
        if parsed is None:
            raise ConfigError(source, key, f"{value!r} is not allowed; allowed: {setting.allowed}")
        if key.endswith("_folder") and isinstance(parsed, str) and parsed:
            parsed = str(folder / Path(parsed).expanduser())
        checked[key] = parsed
    return checked


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, _SETTINGS, n=1, cutoff=0.5)
    return f'; did you mean "{near[0]}"?' if near else "; `bookie config` lists them all"


def _with_folders(config: BookieConfig, source: str) -> BookieConfig:
    data = config.data_folder
    if not data:
        raise ConfigError(source, "data_folder", "missing; name the bookie's folder (--data DIR)")
    return msgspec.structs.replace(
        config,
        journal_folder=config.journal_folder or str(Path(data, "journal")),
        ledger_folder=config.ledger_folder or str(Path(data, "ledgers")),
        metadata=config.metadata or f"sqlite://{Path(data, 'metadata.db')}",
    )


def _check_pairs(config: BookieConfig, source: str) -> None:
    if config.disk_warn_ratio > config.disk_full_ratio:
        raise ConfigError(source, "disk_warn_ratio", "greater than disk_full_ratio")
    if config.minor_threshold > config.major_threshold > 0:
        raise ConfigError(source, "minor_threshold", "greater than major_threshold")
    if config.connection_bytes_max > config.bytes_in_flight_max:
        raise ConfigError(source, "connection_bytes_max", "greater than bytes_in_flight_max")
    address = config.advertised_address
    has_port = ":" in address.rpartition("]")[2]
    if address and not has_port and config.port != DEFAULT_PORT:
        raise ConfigError(source, "advertised_address", "without its port; expected host:port")
    if config.journal_folder == config.ledger_folder:
        raise ConfigError(source, "journal_folder", "the same as ledger_folder")
