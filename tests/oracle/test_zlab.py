"""Our exports in z-lab's own package: what it loads, what it computes, and what its decoding loop accepts.

Its loop shortens the last blocks to the tokens that are left. So it is asked for a block more than ours, and what goes
beyond is left out: all rounds compared have whole blocks.
"""

from itertools import accumulate

import pytest
import torch

from dflash_pipeline.evaluation.decode import draft_and_verify, greedy_decode
from dflash_pipeline.evaluation.export import export_drafter, load_drafter
from dflash_pipeline.model.drafter import DrafterCache
from dflash_pipeline.model.target import FrozenTarget
from tests.numerics.test_train_export_decode import PROMPT, train
from tests.oracle.packages import oracle
from tests.tiny_models import TAPS, strong_drafter, tiny_config, tiny_model

zlab = oracle("dflash.model")

pytestmark = pytest.mark.oracle

CONTEXT, BLOCK, NEW = 13, 8, 32


@pytest.fixture(autouse=True)
def clock_without_a_gpu(monkeypatch):
    # Their statistics wait for CUDA before they read the clock.
    monkeypatch.setattr(zlab, "_cuda_time", lambda: 0.0)


@pytest.mark.parametrize("window", [None, 6])
def test_an_export_loads_and_drafts_the_same_block(talking_dir, tmp_path, window):
    config = tiny_config(window=window)
    theirs = exported(config, strong_drafter(config).state_dict(), talking_dir, tmp_path / "d")
    generator = torch.Generator().manual_seed(0)
    features, block = torch.randn(CONTEXT, 192, generator=generator), torch.randn(BLOCK, 64, generator=generator)
    positions = torch.arange(CONTEXT + BLOCK)[None]
    with torch.no_grad():
        hidden = theirs(position_ids=positions, noise_embedding=block[None], target_hidden=features[None])[0]
    drafted = load_drafter(tmp_path / "d").draft(features, block, DrafterCache())
    torch.testing.assert_close(drafted, hidden, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 6])
def test_its_loop_gives_the_targets_tokens_and_accepts_what_ours_accepts(talking_dir, answered, tmp_path, window):
    learned = torch.stack([answered(PROMPT, NEW) for _ in range(12)])
    config = tiny_config(window=window)
    theirs = exported(config, train(config, talking_dir, learned).state, talking_dir, tmp_path / "d")
    ours, target = load_drafter(tmp_path / "d"), FrozenTarget.load(talking_dir, tap_layer_ids=TAPS)
    model = tiny_model(seed=3).eval()

    lengths = []
    unseen = [answered(PROMPT, 1) for _ in range(4)]
    for prompt in [text[:PROMPT] for text in (*learned[:4], *unseen)]:
        alone = greedy_decode(target, prompt.tolist(), max_new_tokens=NEW, stop_ids=frozenset())
        decoded = draft_and_verify(target, ours, prompt.tolist(), max_new_tokens=NEW, stop_ids=frozenset())
        stats = zlab.dflash_generate(
            theirs, model, prompt[None], max_new_tokens=NEW + BLOCK, stop_token_ids=[], return_stats=True
        )
        assert stats.output_ids[0, PROMPT : PROMPT + NEW].tolist() == alone == list(decoded.tokens)
        assert list(decoded.accepted) == cut(stats.acceptance_lengths, NEW - 1)
        lengths += decoded.accepted
    # A loop that accepts nothing, or everything, would agree whatever it drafts from.
    assert {1, BLOCK} < set(lengths)


def exported(config, state, target_dir, folder):
    """Written by ours, read by theirs, with no tensor missing and none left over."""
    export_drafter(config, state, target_dir=target_dir, out=folder, card="")
    model, info = zlab.DFlashDraftModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    return model.eval()


def cut(rounds: list[int], total: int) -> list[int]:
    """The rounds that give the first `total` tokens; the last of them as far as it goes into these."""
    before = [0, *accumulate(rounds)]
    return [min(length, total - start) for length, start in zip(rounds, before, strict=False) if start < total]
