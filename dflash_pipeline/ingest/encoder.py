"""Text to token ids, and the characters that each token stands for.

Tokenizers report characters at a price, and trim white space from them. For byte-level ones both follow from the ids:
a token stands for as many bytes as its entry is long. Where that does not add up to the text, the report is used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Literal
from unicodedata import is_normalized

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer, decoders, normalizers

from dflash_pipeline.ingest.control import MARK, Range

Span = tuple[int, int]
Ids = npt.NDArray[np.int32]

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
_FORMS: dict[type, Form] = {
    normalizers.NFC: "NFC",
    normalizers.NFD: "NFD",
    normalizers.NFKC: "NFKC",
    normalizers.NFKD: "NFKD",
}


class TextEncoder:
    """A tokenizer, from here on without truncation or padding. Can be sent to another process."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.backend.no_truncation()
        self.backend.no_padding()
        self.backend.encode_special_tokens = False
        self.num_ids = 1 + max([backend.get_vocab_size() - 1, *backend.get_added_tokens_decoder()])
        self._form = _FORMS.get(type(self.backend.normalizer)) if self.backend.normalizer else None

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        """Tokens of texts that hold every special token already. Runs outside of Python, on every core it may use."""
        # The fast form reports no characters: not needed where they follow from the ids.
        encode = self.backend.encode_batch if self._widths is None else self.backend.encode_batch_fast
        return encode(texts, add_special_tokens=False)

    def read(self, encoding: Encoding, text: str, characters: Sequence[Span]) -> tuple[Ids, list[Span]]:
        """What `encode` gave for a text: its ids, and the tokens of these characters (`token_spans`)."""
        listed = encoding.ids
        ids = np.fromiter(listed, np.int32, len(listed))
        ends = self._byte_ends(ids, text)
        if ends is None:
            slow = encoding if self._widths is None else self.backend.encode(text, add_special_tokens=False)
            return ids, token_spans(characters, _reported(slow))
        return ids, _spans_of_bytes(_in_bytes(characters, text), ends)

    def encode_document(self, text: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Tokens of a text as the tokenizer alone would frame it, and which of them stand for the text itself.

        What the frame has in front (`<s>`) is not put before a text that begins with it.
        """
        encoding = self.backend.encode(text)
        if encoding.ids and encoding.special_tokens_mask[0] and encoding.ids[1:2] == encoding.ids[:1]:
            encoding = self.backend.encode(text, add_special_tokens=False)
        own = np.array(encoding.special_tokens_mask, dtype=np.bool_) == 0
        return np.array(encoding.ids, dtype=np.int32), own

    def encode_keeping(
        self, text: str, kept: Sequence[Range], characters: Sequence[Span]
    ) -> tuple[Ids, list[Span]] | None:
        """As `read`, for a text in which the characters of `kept`, though they spell control tokens, are text.

        The result is what the tokenizer would give if it did not know those tokens there. None when it cannot be had.
        """
        added = self.backend.get_added_tokens_decoder()
        plain = self.backend.encode(text, add_special_tokens=False)
        real = [
            (text.index(added[token].content, start), token)
            for token, (start, end) in zip(plain.ids, plain.offsets, strict=True)
            if token in added and not any(start < last and first < end for first, last in kept)
        ]
        marked, marks = _marked(text, [start for start, _ in real])
        renamed, original = self._renamed
        encoding = renamed.encode(marked, add_special_tokens=False)
        ids = np.array([original.get(token, token) for token in encoding.ids], dtype=np.int32)
        if [token for token in ids.tolist() if token in added] != [token for _, token in real]:
            return None
        reported = _reported(encoding)
        return ids, token_spans(characters, reported - np.searchsorted(marks, reported, side="left"))

    @cached_property
    def _widths(self) -> npt.NDArray[np.int64] | None:
        return _byte_widths(self.backend)

    @cached_property
    def _renamed(self) -> tuple[Tokenizer, dict[int, int]]:
        return _renamed(self.backend)

    def _byte_ends(self, ids: Ids, text: str) -> npt.NDArray[np.int64] | None:
        """The byte at which each token ends, from what it stands for; None when that does not make up the text."""
        if self._widths is None or (self._form and not text.isascii() and not is_normalized(self._form, text)):
            return None
        ends: npt.NDArray[np.int64] = np.cumsum(self._widths[ids])
        num_bytes = len(text) if text.isascii() else len(text.encode())
        return ends if ends.size and ends[-1] == num_bytes else None


def token_spans(characters: Sequence[Span], offsets: npt.NDArray[np.int64]) -> list[Span]:
    """Runs of tokens that lie wholly inside the character spans; `offsets` holds each token's first and last + 1.

    Spans that touch become one. A token across a span's edge stands for text of the template too, and is left out.
    """
    starts, ends = offsets[:, 0], offsets[:, 1]
    firsts, lasts = np.array(characters, dtype=np.int64).reshape(-1, 2).T
    # By its end as well: some tokenizers report a lone space as nothing, at its right edge.
    lows = np.maximum(np.searchsorted(starts, firsts, "left"), np.searchsorted(ends, firsts, "right"))
    return _joined(lows, np.searchsorted(ends, lasts, "right"))


def _spans_of_bytes(positions: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[Span]:
    """As `token_spans`, where each token begins at the byte at which the one before it ends."""
    firsts, lasts = positions[::2], positions[1::2]
    lows = ends.searchsorted(firsts, "left") + 1
    if firsts.size and firsts[0] == 0:
        lows[0] = 0
    return _joined(lows, ends.searchsorted(lasts, "right"))


def _joined(lows: npt.NDArray[np.int64], highs: npt.NDArray[np.int64]) -> list[Span]:
    runs: list[Span] = []
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        if low >= high:
            continue
        if runs and runs[-1][1] == low:
            runs[-1] = (runs[-1][0], high)
        else:
            runs.append((low, high))
    return runs


def _in_bytes(characters: Sequence[Span], text: str) -> npt.NDArray[np.int64]:
    """Ascending spans as bytes of the text, first and last + 1 one after the other."""
    edges = [edge for span in characters for edge in span]
    if not text.isascii():
        pieces = [text[start:end] for start, end in zip([0, *edges], edges, strict=False)]
        edges = list(accumulate(len(piece.encode()) for piece in pieces))
    return np.array(edges, dtype=np.int64)


def _byte_widths(backend: Tokenizer) -> npt.NDArray[np.int64] | None:
    """Bytes that each id stands for, of a byte-level tokenizer that changes no text but by a Unicode form."""
    known_form = backend.normalizer is None or type(backend.normalizer) in _FORMS
    if not isinstance(backend.decoder, decoders.ByteLevel) or not known_form:
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    added = backend.get_added_tokens_decoder()
    widths = np.zeros(1 + max([*vocabulary.values(), *added], default=0), dtype=np.int64)
    numbers = np.fromiter(vocabulary.values(), np.int64, len(vocabulary))
    widths[numbers] = np.fromiter(map(len, vocabulary), np.int64, len(vocabulary))
    for number, added_token in added.items():
        widths[number] = len(added_token.content.encode())
    return widths


def _reported(encoding: Encoding) -> npt.NDArray[np.int64]:
    return np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)


def _marked(text: str, starts: Sequence[int]) -> tuple[str, npt.NDArray[np.int64]]:
    """The text with a mark before each of these characters, and where in the marked text the marks are."""
    pieces = [text[begin:end] for begin, end in zip([0, *starts], [*starts, len(text)], strict=True)]
    return MARK.join(pieces), np.array([start + i for i, start in enumerate(starts)], dtype=np.int64)


def _renamed(backend: Tokenizer) -> tuple[Tokenizer, dict[int, int]]:
    """The tokenizer with a mark before the name of each added token, and what its ids of them are otherwise."""
    description = json.loads(backend.to_str())
    for token in description["added_tokens"]:
        token["content"] = MARK + token["content"]
    renamed = Tokenizer.from_str(json.dumps(description))
    names = {MARK + token.content: number for number, token in backend.get_added_tokens_decoder().items()}
    found = {renamed.token_to_id(name): number for name, number in names.items()}
    return renamed, {other: number for other, number in found.items() if other is not None}
