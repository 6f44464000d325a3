"""One DuckDB file: opened for a moment, waited for when another process has it, set aside when it is damaged."""

from __future__ import annotations

import fcntl
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import duckdb

from dflash_pipeline.contracts.errors import Failed, Refused
from dflash_pipeline.faults import fault_point, fault_write
from dflash_pipeline.store.files import set_aside
from dflash_pipeline.store.tables import SCHEMA, SCHEMA_VERSION, UNANSWERED_TABLE

log = logging.getLogger(__name__)

Connection = duckdb.DuckDBPyConnection
Result = TypeVar("Result")

# DuckDB reads no file but the manifests beside it, no network address and no Python variable on its own account: rows
# come by `register` alone.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    # Its own default is 80 % of the machine. What does not fit is spilled to a folder beside the file.
    "memory_limit": "512MB",
    # A commit goes into the file at once. Through the write-ahead log every text would be written twice, since the log
    # is emptied as soon as the connection is closed.
    "checkpoint_threshold": "0KB",
}
_LOCKED = "Could not set lock on file"
_FULL = "No space left on device"
_HOLDER = re.compile(r"\(PID (\d+)\)")
_DAMAGE = (
    "not a valid DuckDB database file",
    "Corrupt database file",
    "Could not read enough bytes",
    "Failure while replaying WAL",
)
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


class WarehouseDamaged(Failed):
    """The file could not be read; it has been set aside and an empty one will take its place."""


class Database:
    """Transactions on one file. No connection outlives a call, because an open one locks out every other process."""

    __slots__ = ("path", "wait_seconds")

    def __init__(self, path: Path, *, wait_seconds: float) -> None:
        self.path = path
        self.wait_seconds = wait_seconds

    def read(self, act: Callable[[Connection], Result]) -> Result:
        """`act` on a connection; on a damaged file, once more on the empty one that replaces it."""
        try:
            with self.connection() as connection:
                return act(connection)
        except WarehouseDamaged:
            with self.connection() as connection:
                return act(connection)

    def write(self, act: Callable[[Connection], Result]) -> Result:
        """`act` in one transaction, committed as a whole; on a damaged file, once more on the empty one."""
        try:
            with self.transaction() as connection:
                return act(connection)
        except WarehouseDamaged:
            with self.transaction() as connection:
                return act(connection)

    def find_or_write(
        self, find: Callable[[Connection], Result | None], act: Callable[[Connection], Result]
    ) -> tuple[Result, bool]:
        """What `find` finds, and True; where that is None, what `act` makes in one transaction, and False.

        The file is opened once: for a small ingestion that takes as long as a third of its reading.
        """

        def once() -> tuple[Result, bool]:
            with self.connection() as connection:
                if (found := find(connection)) is not None:
                    return found, True
                with _transaction(connection):
                    return act(connection), False

        try:
            return once()
        except WarehouseDamaged:
            return once()

    def look(self) -> str | None:
        """What is wrong with the file, without changing it: damaged, of another version, held. None when nothing is."""
        try:
            with closing(duckdb.connect(str(self.path), read_only=True, config=_CONFIG)) as connection:
                [(version,)] = connection.execute("SELECT max(version) FROM schema_version").fetchall()
        except duckdb.IOException as error:
            holder = _HOLDER.search(str(error))
            return f"process {holder[1]} holds it" if holder else str(error).splitlines()[0]
        except duckdb.Error as error:
            return str(error).splitlines()[0]
        return None if version == SCHEMA_VERSION else f"its tables are of version {version}, not {SCHEMA_VERSION}"

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection whose changes are all kept when the body ends, and none when it fails."""
        with self.connection() as connection, _transaction(connection):
            yield connection

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection to a file that has our tables, closed when the body ends."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        inode = self._inode()
        connection = None
        try:
            connection = self._open()
            self._prepare(connection)
            yield connection
        except duckdb.Error as error:
            if _FULL in str(error):
                raise Failed(
                    f"the disk is full: {error}",
                    where=str(self.path),
                    fix="free space and run again; nothing of this transaction was kept",
                ) from error
            if isinstance(error, duckdb.OutOfMemoryException):
                raise Failed(
                    f"a row or a query is too large for the database: {str(error).splitlines()[0]}",
                    where=str(self.path),
                    fix="lower data.max_row_bytes; nothing of this transaction was kept",
                ) from error
            if not any(mark in str(error) for mark in _DAMAGE):
                raise
            if connection is not None:
                connection.close()
            self._set_aside(inode, error)
            raise WarehouseDamaged(
                f"not readable: {error}", where=str(self.path), fix="run again; what it held is made anew"
            ) from error
        finally:
            if connection is not None:
                connection.close()

    def _open(self) -> Connection:
        give_up = time.monotonic() + self.wait_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._closed_in(duckdb.connect(str(self.path), config=_CONFIG))
            except duckdb.IOException as error:
                if any(mark in str(error) for mark in _DAMAGE):
                    raise
                if _LOCKED not in str(error):
                    raise Refused(
                        f"cannot be opened: {error}", where=str(self.path), fix="check the path and its permissions"
                    ) from error
                left = give_up - time.monotonic()
                if left <= 0:
                    raise self._held(str(error)) from None
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _closed_in(self, connection: Connection) -> Connection:
        """The same, silent and with no way to other files than the manifests, which cannot be taken back."""
        manifests = str(self.path.parent.resolve() / "plans") + "/"
        connection.execute("SET allowed_directories = ?", [[manifests]])
        connection.execute("SET enable_external_access = false")
        # It goes to standard output, which holds nothing but the answer.
        connection.execute("SET enable_progress_bar_print = false")
        return connection

    def _held(self, message: str) -> Refused:
        found = _HOLDER.search(message)
        holder = f"process {found[1]}" if found else "another process"
        return Refused(
            f"{holder} held the database for {self.wait_seconds:g} s",
            where=str(self.path),
            fix=f"wait for {holder} to end, or end it, then run again",
        )

    def _prepare(self, connection: Connection) -> None:
        # Fetched to the end: DuckDB lets nothing else use a connection while a result is half read.
        tables = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        if not tables:
            connection.begin()
            connection.execute(SCHEMA)
            connection.execute(UNANSWERED_TABLE)
            connection.execute("INSERT INTO schema_version VALUES (?)", [SCHEMA_VERSION])
            fault_point("warehouse.before-create")
            connection.commit()
            fault_point("warehouse.after-create")
        [(version,)] = connection.execute("SELECT max(version) FROM schema_version").fetchall()
        if version != SCHEMA_VERSION:
            raise Refused(
                f"its tables are of version {version}, not {SCHEMA_VERSION}",
                where=str(self.path),
                fix="move the file away; what it holds is made anew from the sources",
            )
        if tables and "unanswered" not in tables:
            connection.execute(UNANSWERED_TABLE)

    def _inode(self) -> int | None:
        return self.path.stat().st_ino if self.path.exists() else None

    def _set_aside(self, inode: int | None, error: duckdb.Error) -> None:
        """Rename the file and its write-ahead log, unless another process that met the damage has done so."""
        with self.path.with_name(f"{self.path.name}.repair").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if self._inode() != inode or inode is None:
                return
            kept = set_aside(self.path)
            write_ahead = self.path.with_name(f"{self.path.name}.wal")
            if write_ahead.exists():
                set_aside(write_ahead)
            log.warning("%s is damaged (%s); kept as %s, and an empty one takes its place", self.path, error, kept.name)


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    connection.begin()
    yield
    fault_point("warehouse.before-commit")
    fault_write()
    connection.commit()
    fault_point("warehouse.after-commit")
