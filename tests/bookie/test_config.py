from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

import bookie.config
from bookie.config import BookieConfig, ConfigError, load_config, sample_file
from bookie.settings import GiB, MiB, Setting, TiB, format_size

SAMPLE = Path(bookie.config.__file__).with_name("bookie.toml")
DEFAULTS = BookieConfig()


def write(folder: Path, text: str) -> Path:
    path = folder / "bookie.toml"
    path.write_text(text)
    return path


def test_the_sample_file_is_what_the_declarations_say() -> None:
    assert SAMPLE.read_text() == sample_file()


def test_the_sample_file_names_every_setting_with_its_default(tmp_path: Path) -> None:
    values = tomllib.loads(SAMPLE.read_text())
    assert list(values) == list(BookieConfig.__struct_fields__)
    loaded = load_config(SAMPLE, {"data_folder": str(tmp_path)})
    for key in set(values) - {"data_folder", "journal_folder", "ledger_folder", "metadata"}:
        assert getattr(loaded, key) == getattr(DEFAULTS, key)


def test_every_setting_is_explained_with_unit_and_bounds() -> None:
    lines = SAMPLE.read_text().splitlines()
    for number, line in enumerate(lines):
        if " = " in line and not line.startswith("#"):
            assert lines[number - 1].startswith("# "), line
    for key, setting, default in bookie.config.settings():
        if isinstance(default, bool):
            assert setting.allowed == "true or false"
        elif not isinstance(default, str):
            assert setting.unit, key
            assert setting.low <= default <= setting.high


def test_there_are_at_most_forty_one_settings() -> None:
    assert len(BookieConfig.__struct_fields__) <= 41


def test_folders_and_metadata_follow_the_data_folder(tmp_path: Path) -> None:
    config = load_config(None, {"data_folder": str(tmp_path)})
    assert config.journal_folder == f"{tmp_path}/journal"
    assert config.ledger_folder == f"{tmp_path}/ledgers"
    assert config.metadata == f"sqlite://{tmp_path}/metadata.db"


def test_a_relative_folder_counts_from_the_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, 'data_folder = "here"\njournal_folder = "/fast"'))
    assert config.data_folder == f"{tmp_path}/here"
    assert config.journal_folder == "/fast"
    assert config.ledger_folder == f"{tmp_path}/here/ledgers"


def test_a_relative_folder_of_the_command_line_counts_from_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(None, {"data_folder": "x"}).data_folder == f"{tmp_path}/x"


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'data_folder = "d"\nport = 1\nread_workers = 7')
    config = load_config(path, {"port": "2"})
    assert (config.port, config.read_workers) == (2, 7)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 * MiB),
        ("1GiB", GiB),
        ("1 gib", GiB),
        ("10485760", 10 * MiB),
        ("10485760B", 10 * MiB),
        ("16384KiB", 16 * MiB),
    ],
)
def test_sizes_are_numbers_or_text_with_a_unit(tmp_path: Path, text: str, size: int) -> None:
    path = write(tmp_path, f'data_folder = "d"\nmemtable_size = "{text}"')
    assert load_config(path).memtable_size == size
    assert load_config(path, {"memtable_size": size}).memtable_size == size


@pytest.mark.parametrize(("value", "switched"), [("true", True), (False, False), ("false", False)])
def test_a_switch_is_true_or_false(tmp_path: Path, value: object, switched: bool) -> None:
    overrides = {"data_folder": str(tmp_path), "autorecovery": value}
    assert load_config(None, overrides).autorecovery is switched


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1536, MiB, 5 * GiB, TiB])
def test_a_size_is_read_as_it_was_written(size: int) -> None:
    setting = Setting("", "bytes", 0, 2 * TiB)
    assert setting.parse(int, format_size(size)) == size


@pytest.mark.parametrize("text", ["64MB", "MiB", "-1", "1.5GiB", "", "1e6", "64 Mi B", "9" * 30])
def test_what_is_not_a_size_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="allowed: 10MiB to 1GiB"):
        load_config(None, {"data_folder": str(tmp_path), "memtable_size": text})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key, value)
        for key, setting, default in bookie.config.settings()
        for value in (
            [setting.low - 1, setting.high + 1, True, [], {}, "x y", math.nan]
            if not isinstance(default, str | bool)
            else ["none of these", 7, []]
            if setting.choices
            else [7, True, [], "\0"]
        )
    ],
)
def test_values_out_of_bounds_are_refused_in_one_line(
    tmp_path: Path, key: str, value: object
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {"data_folder": str(tmp_path), key: value})
    assert refused.value.key == key
    assert str(refused.value).startswith(f"the command line: {key}: ")
    assert "allowed: " in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key, value)
        for key, setting, default in bookie.config.settings()
        if not isinstance(default, str | bool)
        for value in (setting.low, setting.high)
    ],
)
def test_both_bounds_of_every_setting_are_allowed(tmp_path: Path, key: str, value: float) -> None:
    overrides: dict[str, object] = {
        "data_folder": str(tmp_path),
        "disk_warn_ratio": 0.01,
        "disk_full_ratio": 1,
        "minor_threshold": 0,
        "connection_bytes_max": MiB,
        "bytes_in_flight_max": 64 * GiB,
    }
    if key == "major_threshold" or key not in overrides:
        overrides[key] = value
    load_config(None, overrides)


@pytest.mark.parametrize("name", ["b 1", "-x", "ü", "a/b", "x" * 129])
def test_a_bookie_id_is_made_of_few_characters(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits"):
        load_config(None, {"data_folder": str(tmp_path), "bookie_id": name})


def test_an_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "memtabel_size = 1")
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert str(refused.value) == (
        f'{path}: memtabel_size: no such setting; did you mean "memtable_size"?'
    )


def test_a_setting_like_no_other_leads_to_the_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`bookie config` lists them all"):
        load_config(write(tmp_path, "zzz = 1"))


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ({"disk_full_ratio": 0.5}, "disk_warn_ratio"),
        ({"minor_threshold": 0.9}, "minor_threshold"),
        ({"connection_bytes_max": "1GiB"}, "connection_bytes_max"),
        ({"journal_folder": "/a", "ledger_folder": "/a"}, "journal_folder"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(low: dict[str, object], high: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {"data_folder": "/d", **low})
    assert refused.value.key == high


@pytest.mark.parametrize("key", ["compaction_rate", "repair_rate_max", "scrub_rate"])
def test_a_rate_is_not_a_few_bytes(tmp_path: Path, key: str) -> None:
    """50 was meant as 50MiB, and repair would never end."""
    for value in (1, 50, 65_535, "63KiB"):
        with pytest.raises(ConfigError, match="allowed: 0, or 64KiB to 1TiB"):
            load_config(None, {"data_folder": str(tmp_path), key: value})
    for value in (0, "0", "64KiB"):
        load_config(None, {"data_folder": str(tmp_path), key: value})


def test_a_bookie_without_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="--data DIR"):
        load_config(None)


@pytest.mark.parametrize("content", [b"port = ", b"\xff\xfe", b"port 1"])
def test_a_file_that_is_not_toml_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken\.toml: not TOML"):
        load_config(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize("rack", ["", "r1", "hall2/r1", "/region/rack", "x" * 64])
def test_a_rack_is_a_short_name(rack: str) -> None:
    assert load_config(None, {"data_folder": "/d", "rack": rack}).rack == rack


@pytest.mark.parametrize("rack", ["r 1", "-", "r\n", "ä", "x" * 65])
def test_another_rack_is_refused_with_what_is_allowed(rack: str) -> None:
    with pytest.raises(ConfigError, match="up to 64 letters"):
        load_config(None, {"data_folder": "/d", "rack": rack})


@pytest.mark.parametrize("address", ["host", "10.0.0.1", "[::1]"])
def test_an_advertised_address_has_a_port(tmp_path: Path, address: str) -> None:
    """With a port of its own, others would look for it at the default one."""
    default = {"data_folder": str(tmp_path), "advertised_address": address}
    assert load_config(None, default).advertised_address == address
    given = {**default, "port": "3182"}
    with pytest.raises(ConfigError, match="expected host:port"):
        load_config(None, given)
    config = load_config(None, {**given, "advertised_address": f"{address}:1"})
    assert config.advertised_address == f"{address}:1"
