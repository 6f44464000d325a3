"""Equal content, equal fingerprint; other content, another one; what has no content is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.fingerprint import FINGERPRINT_LENGTH, array_digest, fingerprint

plain = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)


@dataclass(frozen=True)
class Point:
    x: int
    y: float


@dataclass(frozen=True)
class Turned:
    """Its fields are not in the order of their names."""

    b: int
    a: int


def test_values_are_pinned():
    # Plans, snapshots and runs on disk are named by these.
    assert fingerprint(a=1, b="x", c=[1.5, None, True]) == "db65c0f5155e1e1a"
    assert fingerprint(a="é", b="😀") == "1b9e5fb307bd5434"
    sets = [{1, 2}, frozenset({Turned(b=1, a=2)})]
    assert fingerprint(sets=sets, array=np.arange(2, dtype="<i8")) == "3b1edbdd92d368bb"
    assert (
        array_digest(np.arange(3), np.zeros((1, 2), dtype=np.bool_))
        == "ed28e648a8b59713aa678a9385f4221babbf0526b69cf3da8ae35409fb1d728e"
    )


def test_a_fingerprint_is_short_hexadecimal():
    assert len(fingerprint()) == FINGERPRINT_LENGTH == 16
    assert int(fingerprint(), 16) >= 0


@given(st.dictionaries(st.text(), plain), plain)
def test_order_of_names_does_not_count(mapping, value):
    turned = dict(reversed(mapping.items()))
    assert fingerprint(part=mapping, value=value) == fingerprint(value=value, part=turned)


@given(st.lists(plain, max_size=4, unique_by=repr), st.lists(plain, max_size=4, unique_by=repr))
def test_other_values_other_fingerprints(first, second):
    same = [(type(x), repr(x)) for x in first] == [(type(x), repr(x)) for x in second]
    assert (fingerprint(v=first) == fingerprint(v=second)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, "1"),
        (0, False),
        (None, "null"),
        ([1, 2], [2, 1]),
        ([], None),
        ([1], [[1]]),
        ({1, 2}, {1, 3}),
        ({1, 2}, [1, 2]),
        (0.1, 0.1 + 1e-17 * 4),
    ],
)
def test_what_looks_alike_is_told_apart(one, other):
    assert fingerprint(v=one) != fingerprint(v=other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.int64(3), 3),
        (np.float64(0.1), 0.1),
        (np.bool_(True), True),
        ((1, 2), [1, 2]),
        ({3, 1, 2}, {2, 3, 1}),
        (frozenset("ab"), frozenset("ba")),
        (Point(1, 2.0), {"x": 1, "y": 2.0}),
        (np.arange(3, dtype="<i4"), np.arange(3, dtype=">i4")),
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy()),
    ],
)
def test_equal_content_is_equal(one, other):
    assert fingerprint(v=one) == fingerprint(v=other)


@pytest.mark.parametrize(
    "other", [np.arange(4), np.arange(3, dtype=np.int32), np.arange(3).reshape(3, 1), np.array([0, 1, 3])]
)
def test_type_shape_and_values_of_arrays_count(other):
    assert fingerprint(v=np.arange(3)) != fingerprint(v=other)
    assert array_digest(np.arange(3)) != array_digest(other)


def test_where_one_array_ends_counts():
    assert array_digest(np.arange(2), np.arange(3)) != array_digest(np.arange(3), np.arange(2))
    assert array_digest(np.zeros(0, np.int64)) != array_digest()


@pytest.mark.parametrize(
    ("value", "kind"), [(object(), "object"), (b"bytes", "bytes"), (1j, "complex"), (Point, "type")]
)
def test_what_has_no_content_is_a_type_error(value, kind):
    with pytest.raises(TypeError, match=rf"^cannot fingerprint a {kind}: give plain values, records or arrays$"):
        fingerprint(v=[value])


def test_an_array_of_objects_is_a_type_error():
    with pytest.raises(TypeError, match=r"^cannot digest an array of objects: its bytes are addresses$"):
        fingerprint(v=np.array([object()]))


def test_another_process_agrees():
    code = "from dflash_pipeline.contracts.fingerprint import fingerprint as f; print(f(v={'b', 'a', 'c'}, w={1: 2.5}))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == fingerprint(v={"a", "b", "c"}, w={1: 2.5})
