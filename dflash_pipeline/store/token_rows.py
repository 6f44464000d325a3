"""What became of each conversation of a snapshot: `rows.arrow`, one row a conversation, in canonical order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.contracts.sample import UNSEEN, DropReason
from dflash_pipeline.faults import fault_write

ROWS_FILE = "rows.arrow"
ROWS_AT_ONCE = 2**16
SCHEMA = pa.schema(
    [
        pa.field("conversation_id", pa.string(), nullable=False),
        # SHA-256 of what the conversation says.
        pa.field("digest", pa.binary(32), nullable=False),
        # The first of its samples: copies have the ids after it. Null where there is none.
        pa.field("sample_id", pa.int64()),
        # Why there is none; null where there is one.
        pa.field("reason", pa.string()),
        # Of the sample, and what was cut off beyond the longest length.
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("num_cut", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRow:
    """What became of one conversation."""

    conversation_id: str
    digest: bytes
    sample_id: int | None
    reason: DropReason | None
    num_tokens: int
    num_cut: int


class RowsWriter:
    """Takes rows one by one, and keeps few of them in memory."""

    def __init__(self, writer: pa.RecordBatchFileWriter) -> None:
        self._writer = writer
        self._rows: list[TokenRow] = []

    def add(self, row: TokenRow) -> None:
        self._rows.append(row)
        if len(self._rows) == ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            columns = {name: [getattr(row, name) for row in self._rows] for name in SCHEMA.names}
            self._writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
            self._rows = []


@contextmanager
def write_rows(folder: Path) -> Iterator[RowsWriter]:
    """A writer of the folder's rows; the file is whole when the context is left without an error."""
    fault_write()
    with pa.OSFile(str(folder / ROWS_FILE), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        rows = RowsWriter(writer)
        yield rows
        rows.flush()


class TokenRows:
    """The rows of one snapshot, mapped. Whoever opens them has checked the folder's hashes."""

    def __init__(self, folder: Path) -> None:
        path = folder / ROWS_FILE
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            if reader.schema != SCHEMA:
                raise Refused("an Arrow file, but not the rows of a snapshot", where=str(path), fix=_FIX)
            self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except (OSError, pa.ArrowInvalid) as error:
            raise Refused(f"not readable as the rows of a snapshot: {error}", where=str(path), fix=_FIX) from None
        keys = np.concatenate([np.zeros(0, np.uint64), *map(_keys, self._batches)])
        told = np.flatnonzero(np.concatenate([np.zeros(0, np.bool_), *map(_looked_at, self._batches)]))
        self._order = told[np.argsort(keys[told], kind="stable")]
        self._keys = keys[self._order]

    def table(self) -> pa.Table:
        """All rows, without a copy."""
        return pa.Table.from_batches(self._batches, schema=SCHEMA)

    def find(self, digest: bytes) -> TokenRow | None:
        """The first row whose conversation says this, of those that were looked at."""
        key = np.frombuffer(digest[:8], dtype=np.uint64)[0]
        at = int(np.searchsorted(self._keys, key, side="left"))
        while at < self._keys.size and self._keys[at] == key:
            batch, row = divmod(int(self._order[at]), ROWS_AT_ONCE)
            if self._batches[batch].column(1)[row].as_py() == digest:
                return TokenRow(**{n: self._batches[batch].column(i)[row].as_py() for i, n in enumerate(SCHEMA.names)})
            at += 1
        return None


_FIX = "run the tokenising stage again: it sets a damaged snapshot aside and makes a new one"


def _looked_at(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Rows that say what becomes of their content. Who was left out unseen may come back, and be unknown then."""
    unseen: npt.NDArray[np.bool_] = pc.is_in(batch.column("reason"), pa.array(UNSEEN)).to_numpy(zero_copy_only=False)
    return ~unseen


def _keys(batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    digests = batch.column(1)
    data = np.frombuffer(digests.buffers()[1], dtype=np.uint8).reshape(-1, 32)
    rows = data[digests.offset : digests.offset + len(digests), :8]
    return np.ascontiguousarray(rows).view(np.uint64).ravel()
