"""Tokens and what they stand for: from their bytes, or from the tokenizer's own report."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from dflash_pipeline.ingest.encoder import TextEncoder, token_spans

TARGET = Path(__file__).parents[2] / "examples" / "target" / "tokenizer.json"
TOY = Path(__file__).parents[1] / "cases" / "fixtures" / "toy_tokenizer.json"


def byte_level(normalizer=None):
    backend = Tokenizer.from_file(str(TARGET))
    if normalizer is not None:
        backend.normalizer = normalizer
    return TextEncoder(backend)


@pytest.fixture(scope="module")
def target():
    return byte_level()


@st.composite
def texts_and_spans(draw):
    text = draw(st.text(alphabet=st.one_of(st.sampled_from("ab \n<|é漢😀"), st.characters(codec="utf-8")), min_size=1))
    edges = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
    return text, list(zip(edges[::2], edges[1::2], strict=False))


@settings(deadline=None)
@given(texts_and_spans())
def test_tokens_of_characters_are_those_that_lie_wholly_inside(target, drawn):
    text, characters = drawn
    [encoding] = target.encode([text])
    ids, spans = target.read(encoding, text, characters)
    pieces = [target.backend.id_to_token(token) for token in ids.tolist()]
    ends = np.cumsum([len(piece) for piece in pieces])
    assert ends[-1] == len(text.encode()), "one character of an entry stands for one byte"
    in_bytes = [(len(text[:a].encode()), len(text[:b].encode())) for a, b in characters]
    expected = {
        i
        for i, (end, piece) in enumerate(zip(ends, pieces, strict=True))
        for first, last in in_bytes
        if first <= end - len(piece) and end <= last
    }
    assert {i for start, end in spans for i in range(start, end)} == expected
    assert all(a[1] < b[0] for a, b in pairwise(spans)), "spans that touch are one"


@pytest.mark.parametrize("text", ["e\u0301 is two characters", "\u1100\u1161 is one syllable", "plain", "é"])
def test_a_text_that_the_tokenizer_normalises_is_read_from_its_report(text):
    encoder = byte_level(normalizers.NFC())
    [encoding] = encoder.encode([text])
    last = len(text) - 1
    ids, spans = encoder.read(encoding, text, [(last, last + 1)])
    report = encoder.backend.encode(text, add_special_tokens=False)
    assert ids.tolist() == report.ids
    assert spans == token_spans([(last, last + 1)], np.array(report.offsets))


def test_changes_that_make_up_for_each_other_are_not_taken_for_none():
    # Normalised, the first character takes three bytes more, and each of the three others one less.
    text = "\u0958e\u0301e\u0301e\u0301"
    encoder = byte_level(normalizers.NFC())
    [encoding] = encoder.encode([text])
    ids, spans = encoder.read(encoding, text, [(1, 3)])
    report = encoder.backend.encode(text, add_special_tokens=False)
    assert sum(len(encoder.backend.id_to_token(token)) for token in ids.tolist()) == len(text.encode())
    assert spans == token_spans([(1, 3)], np.array(report.offsets))


def test_a_tokenizer_of_words_is_read_from_its_report():
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = TextEncoder(backend)
    [encoding] = encoder.encode(["a  b c"])
    ids, spans = encoder.read(encoding, "a  b c", [(3, 6)])
    assert ids.tolist() == [1, 2, 0]
    assert spans == [(1, 3)]


def test_truncation_and_padding_of_the_file_do_not_reach_the_tokens():
    description = json.loads(TOY.read_text(encoding="utf-8"))
    plain = Tokenizer.from_str(json.dumps(description))
    backend = Tokenizer.from_str(json.dumps(description))
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    [encoding] = TextEncoder(backend).encode(["abcdef"])
    assert encoding.ids == plain.encode("abcdef").ids


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "a", " ", "é", "<"]), min_size=1))
def test_kept_text_is_tokenised_as_if_its_token_did_not_exist(target, parts):
    text = "".join(parts)
    kept = [(i, i + len("<|im_end|>")) for i in range(len(text)) if text.startswith("<|im_end|>", i)]
    ids, spans = target.encode_keeping(text, kept, [(0, len(text))])
    description = json.loads(target.backend.to_str())
    description["added_tokens"] = [t for t in description["added_tokens"] if t["content"] != "<|im_end|>"]
    assert ids.tolist() == Tokenizer.from_str(json.dumps(description)).encode(text, add_special_tokens=False).ids
    assert spans == [(0, len(ids))]


def test_the_frame_of_a_document_is_not_the_text_and_not_doubled():
    encoder = TextEncoder(Tokenizer.from_file(str(TOY.with_name("toy_tokenizer_bos.json"))))
    begin = encoder.backend.token_to_id("<s>")
    ids, own = encoder.encode_document("ab")
    assert (ids[0], own.tolist()) == (begin, [False, True, True])
    ids, own = encoder.encode_document("<s>ab")
    assert ids.tolist().count(begin) == 1
    assert own.tolist() == [True, True, True]
