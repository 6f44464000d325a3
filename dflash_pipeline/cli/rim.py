"""The last place an exception passes: whatever it is, it leaves as an error of ours: a sentence and an exit code."""

from __future__ import annotations

import errno

from dflash_pipeline.contracts.errors import DflashError, Failed, Refused

_FIXES = {
    errno.ENOENT: "give a path that exists",
    errno.ENOTDIR: "a part of this path is a file: give a folder",
    errno.EISDIR: "give a file, not a folder",
    errno.EEXIST: "a file is in the way: move it, or give another path",
    errno.EACCES: "check who may read and write it",
    errno.EPERM: "check who may read and write it",
    errno.EROFS: "this file system is read-only: give a path elsewhere",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "its symbolic links lead in a circle: give the path of the file itself",
}
"""What a wrong path leads to: bad input. Any other failure of the system, such as a full disk, is nobody's input."""


def as_our_error(error: Exception) -> DflashError:
    """`error` itself when it is ours; otherwise what a person can do about it."""
    if isinstance(error, DflashError):
        return error
    if isinstance(error, OSError):
        return _system_error(error)
    if isinstance(error, MemoryError):
        return Failed(
            "there is not enough memory", where="this machine", fix="run with less at a time, or with more memory"
        )
    lines = str(error).splitlines() or ["no message"]
    return Failed(
        f"{type(error).__name__}: {lines[0]}",
        where="a defect in dflash",
        fix="run the same command with --debug, and report what it shows",
    )


def _system_error(error: OSError) -> DflashError:
    # A rename fails for the sake of its second path at least as often as of its first.
    paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
    where = " to ".join(paths) or "a file"
    what = error.strerror or str(error)
    if error.errno in _FIXES:
        return Refused(what, where=where, fix=_FIXES[error.errno])
    if error.errno == errno.ENOSPC:
        return Failed(what, where=where, fix="free space and run again: it goes on where it stopped")
    return Failed(what, where=where, fix="see what is wrong with this machine, then run again")
