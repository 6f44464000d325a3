"""Small files of a hashed folder, replaced or added later while its large ones stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dflash_pipeline.faults import fault_point
from dflash_pipeline.store.files import HASH_LIST, file_sha256, write_atomic


def put_into_folder(folder: Path, texts: Mapping[str, str]) -> bool:
    """Write files by name into a folder made by `new_folder`, and take them into its hash list.

    The folder is whole at every moment: names leave the list before their files change, and come back after. False when
    every file was there already, as it is to be.
    """
    listed = dict(_entries(folder))
    wanted = {name: text.encode() for name, text in texts.items()}
    changed = [name for name, data in wanted.items() if name not in listed or not _holds(folder / name, data)]
    if not changed:
        return False
    fault_point("folder.before-put")
    _write_list(folder, {name: digest for name, digest in listed.items() if name not in changed})
    for name in changed:
        write_atomic(folder / name, wanted[name])
    fault_point("folder.before-list")
    _write_list(folder, listed | {name: file_sha256(folder / name) for name in changed})
    fault_point("folder.after-put")
    return True


def _entries(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / HASH_LIST).read_text(encoding="utf-8").splitlines()
    return [(name, digest) for digest, _, name in (line.partition("  ") for line in lines)]


def _write_list(folder: Path, entries: Mapping[str, str]) -> None:
    write_atomic(folder / HASH_LIST, "".join(f"{digest}  {name}\n" for name, digest in sorted(entries.items())))


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data
