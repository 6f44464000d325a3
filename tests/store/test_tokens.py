"""Token shards: what is written comes back by sample id, from mapped files."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_pipeline.contracts.errors import ContractBroken, Refused
from dflash_pipeline.contracts.sample import Sample
from dflash_pipeline.store.tokens import ShardFile, TokenStore, write_shards


def sample(number, length, *spans):
    ids = np.arange(length, dtype=np.int32) + 1000 * number
    return Sample(conversation_id=f"c{number}", split="train", input_ids=ids, spans=spans or ((0, length),))


@st.composite
def samples(draw):
    made = []
    for number, length in enumerate(draw(st.lists(st.integers(1, 40), min_size=1, max_size=30))):
        cuts = sorted(draw(st.sets(st.integers(0, length), min_size=2, max_size=6)))
        made.append(sample(number, length, *zip(cuts[::2], cuts[1::2], strict=False)))
    return made


@settings(deadline=None)
@given(samples(), st.integers(1, 200))
def test_what_is_written_comes_back(written, tokens_per_shard):
    with TemporaryDirectory() as name:
        folder = Path(name)
        shards = write_shards(folder, iter(written), tokens_per_shard=tokens_per_shard)
        store = TokenStore(folder, [shard.name for shard in shards])
        assert store.num_samples == len(written) == sum(shard.num_samples for shard in shards)
        for sample_id, expected in enumerate(written):
            assert store.conversation_id(sample_id) == expected.conversation_id
            np.testing.assert_array_equal(store.input_ids(sample_id), expected.input_ids)
            supervised = [t for start, end in expected.spans for t in range(start, end)]
            assert np.flatnonzero(store.supervised_mask(sample_id)).tolist() == supervised
            assert store.supervised_mask(sample_id).size == expected.num_tokens
        assert store.lengths().tolist() == [s.num_tokens for s in written]
        assert store.num_supervised().tolist() == [s.num_supervised for s in written]
        assert store.lengths().dtype == store.num_supervised().dtype == np.int64
        assert all(shard.num_tokens >= tokens_per_shard for shard in shards[:-1])


def test_a_shard_ends_with_the_sample_that_fills_it(tmp_path):
    shards = write_shards(tmp_path, [sample(i, 4) for i in range(5)], tokens_per_shard=8)
    assert shards == [
        ShardFile(name="tokens-00000.arrow", num_samples=2, num_tokens=8),
        ShardFile(name="tokens-00001.arrow", num_samples=2, num_tokens=8),
        ShardFile(name="tokens-00002.arrow", num_samples=1, num_tokens=4),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [shard.name for shard in shards]


def test_equal_samples_make_equal_bytes(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_shards(tmp_path / name, [sample(i, 5 + i) for i in range(9)])
    one, two = ((tmp_path / name / "tokens-00000.arrow").read_bytes() for name in ("one", "two"))
    assert one == two


def test_tokens_are_views_of_the_file(tmp_path):
    write_shards(tmp_path, [sample(0, 3), sample(1, 4)])
    store = TokenStore(tmp_path, ["tokens-00000.arrow"])
    first, second = store.input_ids(0), store.input_ids(1)
    assert first.ctypes.data + first.nbytes == second.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 9
    assert not hasattr(store, "__len__")


def test_no_samples_make_no_shards(tmp_path):
    assert write_shards(tmp_path, []) == []
    empty = TokenStore(tmp_path, [])
    assert empty.num_samples == 0
    assert empty.lengths().size == empty.num_supervised().size == 0


@pytest.mark.parametrize("sample_id", [-1, 2, 10**9])
def test_an_id_outside_the_snapshot_is_refused(tmp_path, sample_id):
    write_shards(tmp_path, [sample(0, 3), sample(1, 4)])
    with pytest.raises(Refused, match="there is no sample"):
        TokenStore(tmp_path, ["tokens-00000.arrow"]).input_ids(sample_id)


def test_damaged_foreign_and_missing_files_are_refused_by_name(tmp_path):
    write_shards(tmp_path, [sample(0, 300)])
    whole = (tmp_path / "tokens-00000.arrow").read_bytes()
    (tmp_path / "torn.arrow").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.arrow").write_bytes(b"")
    with pa.OSFile(str(tmp_path / "other.arrow"), "wb") as file:
        table = pa.table({"a": [1]})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    for name in ("torn.arrow", "empty.arrow", "other.arrow", "absent.arrow"):
        with pytest.raises(Refused, match=name):
            TokenStore(tmp_path, [name])


@pytest.mark.parametrize("tokens_per_shard", [0, 2**31])
def test_shards_that_arrow_cannot_address_are_refused(tmp_path, tokens_per_shard):
    with pytest.raises(ContractBroken, match="tokens per shard"):
        write_shards(tmp_path, [], tokens_per_shard=tokens_per_shard)


def test_threads_read_what_one_reads(tmp_path):
    written = [sample(i, 1 + i % 7) for i in range(500)]
    shards = write_shards(tmp_path, written, tokens_per_shard=300)
    store = TokenStore(tmp_path, [shard.name for shard in shards])
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda i: (store.input_ids(i).sum(), store.supervised_mask(i).sum()), range(500)))
    assert read == [(s.input_ids.sum(), s.num_supervised) for s in written]


def test_opening_does_not_read_the_tokens(tmp_path):
    write_shards(tmp_path, [sample(i, 50_000) for i in range(100)])
    start = time.perf_counter()
    store = TokenStore(tmp_path, ["tokens-00000.arrow"])
    store.input_ids(77)
    assert time.perf_counter() - start < 0.1, "20 MB mapped, not read"
