"""What this machine has to offer: measured once, so that the checks are about numbers."""

from __future__ import annotations

import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from dflash_pipeline.store.layout import Storage

LOOPBACK = "127.0.0.1"
SHARED_MEMORY = Path("/dev/shm")
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Room and devices, in bytes."""

    free_disk: int
    """Where the storage folder is, or would be made."""
    storage_error: str | None
    """Why nothing can be written there."""
    free_memory: int
    """What processes may still take: the smaller of the machine's and of its control group's."""
    free_shared_memory: int | None
    """None: there is none."""
    port_error: str | None
    """Why no port of the loopback address can be had."""
    device_memory: tuple[int, ...]
    """Of each CUDA device, in its order; none when the recipe trains on the CPU."""


def this_machine(storage: Storage, *, device: str) -> Machine:
    """Measure. Nothing is left behind: the storage folder is not made."""
    free_disk, storage_error = _disk(storage.root)
    room = control_group_room(_CGROUPS, _OWN_CGROUPS.read_text(encoding="utf-8") if _OWN_CGROUPS.exists() else "")
    available = psutil.virtual_memory().available
    return Machine(
        free_disk=free_disk,
        storage_error=storage_error,
        free_memory=available if room is None else min(available, room),
        free_shared_memory=shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None,
        port_error=_port_error(),
        device_memory=_device_memory() if device == "cuda" else (),
    )


def control_group_room(mount: Path, membership: str) -> int | None:
    """Bytes that the limits of a process's control groups, and of those above them, leave it; None without a limit.

    `membership` is what `/proc/self/cgroup` says. Pages of files count as free: they are given back when asked for.
    """
    rooms: list[int] = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        own = path.strip("/")
        if not controllers:
            rooms += _rooms(mount, own, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            rooms += _rooms(mount / "memory", own, *names)
    return min(rooms, default=None)


def _rooms(mount: Path, own: str, limit_name: str, used_name: str, cached_name: str) -> list[int]:
    below = mount / own
    rooms = []
    # Inside a container the path is often that of the host: then only the mount itself has the files.
    for folder in (below, *below.parents):
        try:
            limit = int((folder / limit_name).read_text(encoding="utf-8"))
            used = int((folder / used_name).read_text(encoding="utf-8"))
            rows = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
            rooms.append(max(limit - used + int(dict(row.split() for row in rows).get(cached_name, 0)), 0))
        except (OSError, ValueError):
            pass  # No limit ("max" is no number), or none that may be read: what is not known refuses nobody.
        if folder == mount:
            break
    return rooms


def _disk(root: Path) -> tuple[int, str | None]:
    try:
        there = next(path for path in (root, *root.parents) if path.exists())
        # Asked by doing it: who may write is a matter of modes, mounts and quotas. The file never gets a name.
        with tempfile.TemporaryFile(dir=there):
            pass
        return shutil.disk_usage(there).free, None
    except OSError as error:
        return 0, error.strerror or str(error)


def _port_error() -> str | None:
    try:
        with socket.socket() as asked:
            asked.bind((LOOPBACK, 0))
    except OSError as error:
        return error.strerror or str(error)
    return None


def _device_memory() -> tuple[int, ...]:
    import torch

    return tuple(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))


def gib(size: int) -> str:
    """A number of bytes, for a sentence."""
    amount = size / 2**30
    return f"{amount:,.1f} GiB" if amount >= 10 else f"{amount:.2g} GiB"
