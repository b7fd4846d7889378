"""Small files and folders after a power cut, at each step of their making."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from power_cut import Disk, Kind, environment, read

from bookie.durable import make_folder, open_private, replace_file

PROGRAM = """
import sys
from pathlib import Path
from bookie.durable import make_folder, replace_file
folder = Path(sys.argv[1]) / "new"
make_folder(folder)
replace_file(folder / "file", b"old")
replace_file(folder / "file", b"new")
"""


def test_what_root_makes_belongs_to_the_owner_of_its_folder(tmp_path: Path) -> None:
    """A running bookie could not read its users any more, and would let nobody in."""
    assert os.geteuid() == 0, "this test makes files of another user: run it as root"
    os.chown(tmp_path, 65534, 65533)
    make_folder(tmp_path / "new" / "folder")
    for _ in range(2):
        replace_file(tmp_path / "new" / "folder" / "users", b"")
    with open(tmp_path / "lock", "a", opener=open_private):
        pass
    made = [*tmp_path.rglob("*")]
    assert len(made) == 4
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(65534, 65533)}


def test_a_replaced_file_is_the_old_one_or_the_new_one_and_at_the_end_the_new_one(
    tmp_path: Path,
) -> None:
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    subprocess.run(
        [sys.executable, "-c", PROGRAM, root], env=environment(root, trace), check=True, timeout=60
    )
    disk = Disk()
    found: list[bytes] = []
    for at, record in enumerate(read(trace)):
        disk.apply(record)
        for which, names in enumerate(([], disk.folders)):
            image = tmp_path / f"image {at} {which}"
            disk.image(image, None, names_of=names)
            file = image / "new" / "file"
            found.append(file.read_bytes() if file.exists() else b"")
        if record.kind is Kind.SYNC and record.names == ("new",):
            assert found[-1] == found[-2] != b""
    assert set(found) == {b"", b"old", b"new"}
    assert found[-2:] == [b"new", b"new"]
