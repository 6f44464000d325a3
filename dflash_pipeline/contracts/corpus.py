"""What the corpus is: the tokenised samples of one snapshot, and the law of their lengths. True for the run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt

from dflash_pipeline.contracts.batching import MOST_TOKENS
from dflash_pipeline.contracts.errors import ContractBroken

Ints = npt.NDArray[np.int64]


Thinking = Literal["thinking", "non-thinking", "mixed", "unknown"]
"""Whether answers hold thoughts: all samples' do, none do, some do; or there are no answers, or nobody looked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusSnapshot:
    """An immutable set of tokenised samples on disk, named by its content.

    Sample ids are dense: `0 … num_train_samples - 1` are for training, in canonical order; the validation side
    follows. Manifests cover the training side only.
    """

    fingerprint: str
    ingestion: str
    """Fingerprint of the conversations the samples come from."""
    tokenizer: str
    template: str
    answers: str
    """"source" for the answers of the files, otherwise the fingerprint of the target and settings that wrote them."""
    max_length: int
    num_train_samples: int
    num_validation_samples: int
    num_tokens: int
    num_supervised_tokens: int
    dropped: tuple[tuple[str, int], ...]
    """Conversations that gave no sample: reasons, and how many each."""
    shards: tuple[str, ...]
    """File names inside the snapshot's folder, in order of sample id."""
    rule: str = ""
    """Fingerprint of all that turns a conversation into tokens: tokenizer, template, lengths, what is supervised."""
    num_cut_samples: int = 0
    """Samples that were cut at the longest length; `rows.arrow` in the folder tells which."""
    thinking: Thinking = "unknown"
    """Of the samples as they are. The mode that the target was asked in is part of `template`, where one was set."""
    num_thinking_samples: int = 0

    def __post_init__(self) -> None:
        if self.num_train_samples < 1:
            raise ContractBroken(
                "the snapshot holds no training sample",
                where=f"snapshot {self.fingerprint}",
                fix="look at the rejected rows (`dflash rejected`) and at max_length",
            )
        if not 0 < self.num_supervised_tokens <= self.num_tokens:
            raise ContractBroken(
                f"{self.num_supervised_tokens} supervised of {self.num_tokens} tokens",
                where=f"snapshot {self.fingerprint}",
                fix="check that conversations have assistant turns and that the chat template renders them",
            )
        some = self.thinking in ("thinking", "mixed")
        if some != (self.num_thinking_samples > 0) or self.num_thinking_samples > self.num_samples:
            raise ContractBroken(
                f"{self.num_thinking_samples} of {self.num_samples} samples think in a {self.thinking} snapshot",
                where=f"snapshot {self.fingerprint}",
                fix="count the samples whose answers hold thoughts",
            )

    @property
    def num_samples(self) -> int:
        return self.num_train_samples + self.num_validation_samples


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthStatistics:
    """The exact histogram of training lengths: unique lengths and how many samples have each. Never the raw lengths."""

    snapshot: str
    lengths: tuple[int, ...]
    """Unique lengths in tokens, ascending."""
    counts: tuple[int, ...]
    num_supervised_tokens: int

    def __post_init__(self) -> None:
        where = f"length statistics of snapshot {self.snapshot}"
        if not self.lengths or len(self.lengths) != len(self.counts):
            raise ContractBroken(
                f"{len(self.lengths)} unique lengths with {len(self.counts)} counts",
                where=where,
                fix="a corpus has at least one sample, and every length one count",
            )
        if self.lengths[0] < 1 or any(b <= a for a, b in zip(self.lengths, self.lengths[1:], strict=False)):
            raise ContractBroken(
                "lengths are not positive and ascending", where=where, fix="sort unique lengths of at least one token"
            )
        if min(self.counts) < 1:
            raise ContractBroken("a length without a sample", where=where, fix="leave out lengths that do not occur")
        if not 0 <= self.num_supervised_tokens <= self.num_tokens:
            raise ContractBroken(
                f"{self.num_supervised_tokens} supervised of {self.num_tokens} tokens",
                where=where,
                fix="supervised tokens are counted among all tokens",
            )

    @property
    def num_samples(self) -> int:
        return sum(self.counts)

    @property
    def num_tokens(self) -> int:
        return sum(length * count for length, count in zip(self.lengths, self.counts, strict=True))

    @property
    def supervised_fraction(self) -> float:
        return self.num_supervised_tokens / self.num_tokens

    @property
    def max_length(self) -> int:
        return self.lengths[-1]

    def quantile(self, fraction: float) -> int:
        """Smallest length that at least `fraction` (in (0, 1]) of the samples do not exceed."""
        if not 0 < fraction <= 1:
            raise ContractBroken(
                f"quantile of {fraction}", where="length statistics", fix="ask for a fraction above 0 and at most 1"
            )
        reached = zip(self.lengths, accumulate(self.counts), strict=True)
        # Compared as shares: 0.07 * 100 is above 7, while 7 / 100 is 0.07.
        return next(length for length, below in reached if below / self.num_samples >= fraction)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SampleLengths:
    """Tokens and supervised tokens of every training sample, by sample id: what an epoch is planned from."""

    snapshot: str
    num_tokens: Ints
    num_supervised: Ints

    def __post_init__(self) -> None:
        where = f"sample lengths of snapshot {self.snapshot}"
        if self.num_tokens.ndim != 1 or self.num_tokens.shape != self.num_supervised.shape:
            raise ContractBroken(
                f"{self.num_tokens.shape} lengths with {self.num_supervised.shape} supervised counts",
                where=where,
                fix="give one of each for every sample",
            )
        if self.num_tokens.dtype != np.int64 or self.num_supervised.dtype != np.int64:
            raise ContractBroken(
                f"columns of {self.num_tokens.dtype} and {self.num_supervised.dtype}",
                where=where,
                fix="give int64: sums of tokens outgrow smaller types",
            )
        if self.num_tokens.size == 0:
            raise ContractBroken(
                "there are no samples", where=where, fix="give at least one; nothing can be trained on none"
            )
        tokens, supervised = self.num_tokens, self.num_supervised
        odd = np.flatnonzero((tokens > MOST_TOKENS) | (supervised < 0) | (supervised > tokens))
        if odd.size:
            sample = int(odd[0])
            raise ContractBroken(
                f"sample {sample} has {self.num_supervised[sample]} supervised of {self.num_tokens[sample]} tokens",
                where=where,
                fix=f"lengths are at least 0, at most {MOST_TOKENS}, and hold their supervised tokens",
            )
        for name in ("num_tokens", "num_supervised"):
            column = getattr(self, name).view()
            column.setflags(write=False)
            object.__setattr__(self, name, column)
