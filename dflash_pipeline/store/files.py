"""Files and folders that are whole or absent: written under a temporary name, hashed, then renamed into place."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash_pipeline.faults import fault_point, fault_write

HASH_LIST = "sha256.txt"
INCOMPLETE = ".incomplete"


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a file durably; a reader sees the old content or the new, never a part. The folder is made if absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{INCOMPLETE}")
    try:
        fault_write()
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        fault_point("file.before-rename")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)
    fault_point("file.after-rename")


@contextmanager
def new_folder(final: Path, *, act: str) -> Iterator[Path]:
    """A temporary folder to fill; on leaving it is hashed, synced and renamed to `final`, which must not exist.

    `act` names the fault points around writing, hashing and renaming. If the body fails, the temporary folder is
    removed.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(final)
    temporary = final.with_name(f".{final.name}.{os.getpid()}{INCOMPLETE}")
    temporary.mkdir()
    try:
        fault_point(f"{act}.before-write")
        yield temporary
        fault_point(f"{act}.before-hash")
        fault_write()
        _write_hash_list(temporary)
        fault_point(f"{act}.before-rename")
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_folder(final.parent)
    fault_point(f"{act}.after-rename")


def remove_leftovers(final: Path) -> None:
    """Remove temporary folders that processes no longer alive left behind for `final`."""
    for leftover in final.parent.glob(f".{final.name}.*{INCOMPLETE}"):
        pid = leftover.name.removesuffix(INCOMPLETE).rpartition(".")[2]
        if pid.isdigit() and int(pid) != os.getpid() and Path(f"/proc/{pid}").exists():
            continue
        shutil.rmtree(leftover, ignore_errors=True)


def folder_faults(folder: Path) -> list[str]:
    """What is wrong with a folder made by `new_folder`: one sentence a fault, none when it is whole."""
    try:
        lines = (folder / HASH_LIST).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return [f"{HASH_LIST} is missing"]
    except (OSError, UnicodeDecodeError) as error:
        return [f"{HASH_LIST} is not readable: {error}"]
    faults = [] if lines else [f"{HASH_LIST} is empty"]
    for line in lines:
        digest, _, name = line.partition("  ")
        path = folder / name
        if not name or Path(name).is_absolute() or ".." in Path(name).parts:
            faults.append(f"{HASH_LIST} has the odd line {line!r}")
        elif not path.is_file():
            faults.append(f"{name} is missing")
        elif file_sha256(path) != digest:
            faults.append(f"{name} does not match its hash")
    return faults


def set_aside(path: Path) -> Path:
    """Rename something damaged out of the way, keeping it for a person to look at. Returns its new name."""
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(kept)
    return kept


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_hash_list(folder: Path) -> None:
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    for name in names:
        descriptor = os.open(folder / name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    text = "".join(f"{file_sha256(folder / name)}  {name}\n" for name in names)
    with (folder / HASH_LIST).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(folder)
