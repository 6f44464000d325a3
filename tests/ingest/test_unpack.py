"""Compression that is hostile, damaged or in several parts: bounded, and told."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from dflash_pipeline.ingest.limits import Limits
from dflash_pipeline.ingest.unpack import FileUnreadable, open_unpacked, packing
from tests.ingest.taking import take

MIB = 2**20


def pack(kind: str, data: bytes) -> bytes:
    return gzip.compress(data) if kind == "gz" else pa.Codec("zstd").compress(data, asbytes=True)


def unpacked(path: Path, limits: Limits) -> bytes:
    with open_unpacked(path, name="a", limits=limits) as file:
        return file.read()


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_members_follow_each_other(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(pack(kind, b"one\n") + pack(kind, b"two\n"))
    assert packing(path) == kind
    assert unpacked(path, Limits()) == b"one\ntwo\n"


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_bomb_is_stopped_and_takes_no_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"bomb.jsonl.{kind}"
    line = b'{"question": "q", "answer": "' + b"a" * MIB + b'"}\n'
    path.write_bytes(pack(kind, line * 64))
    limits = Limits(unpacked_ratio=1e6)
    tracemalloc.start()
    ingestion, conversations, rejected = take(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "unpacks to more than" in (ingestion.sources[0].error or "")
    assert (conversations, rejected) == ([], [])
    assert peak < 128 * MIB
    assert len(unpacked(path, limits)) == 64 * len(line)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_small_file_may_pack_well(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    data = b"a" * (15 * MIB)
    path.write_bytes(pack(kind, data))
    assert len(unpacked(path, Limits())) == len(data)
    with pytest.raises(FileUnreadable, match="more than 1048576 bytes"):
        unpacked(path, Limits(unpacked_bytes=MIB))


# A zst frame without a checksum, as Arrow writes it, cannot tell that a byte is another.
@pytest.mark.parametrize(
    ("kind", "damage"), [("gz", "cut"), ("gz", "flip"), ("gz", "tail"), ("zst", "cut"), ("zst", "tail")]
)
def test_damage_is_told(tmp_path: Path, kind: str, damage: str) -> None:
    packed = bytearray(pack(kind, bytes(range(256)) * 500))
    if damage == "cut":
        del packed[-4:]
    elif damage == "flip":
        packed[len(packed) // 2] ^= 0x55
    else:
        packed += b"more"
    path = tmp_path / "a"
    path.write_bytes(packed)
    with pytest.raises(FileUnreadable, match="damaged"):
        unpacked(path, Limits())


def test_a_packed_file_in_a_packed_file_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.compress(b'{"question": "q", "answer": "a"}')))
    ingestion, conversations, _ = take(path)
    assert conversations == []
    assert ingestion.accepted == 0
