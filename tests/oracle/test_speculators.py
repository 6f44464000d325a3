"""Our export through speculators' converter, and our loss against the forward of what it makes: vLLM's way in.

Their objective is another: labels are the best tokens of the target, a sum is divided by the number of slots, and a
window is counted from the anchor for all slots of a block. So the texts are the target's own answers, where both kinds
of labels are one; ours is divided as theirs is; and for sliding layers it is given their window.
"""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dflash_pipeline.evaluation.export import export_drafter, load_drafter
from dflash_pipeline.evaluation.speculators_format import Verifier
from dflash_pipeline.evaluation.verify import verify_export
from dflash_pipeline.model import masks
from dflash_pipeline.model.anchors import sample_anchors, supervised_slots
from dflash_pipeline.model.blocks import Blocks, TrainingBatch, end_to_end, in_rows, place_blocks
from dflash_pipeline.model.objective import Objective, micro_batch_loss, planned_weights
from dflash_pipeline.model.target import FrozenTarget
from tests.oracle.agreement import assert_same_gradients, assert_same_loss, tapped
from tests.oracle.packages import oracle
from tests.tiny_models import MASK_TOKEN, TAPS, strong_drafter, tiny_config, tiny_model

core = oracle("speculators.models.dflash.core")
converter = oracle("speculators.convert.dflash.converter")
losses = oracle("speculators.losses")

pytestmark = pytest.mark.oracle

DOCUMENTS = ((9, 24, 8), (8, 15, 5))
"""Tokens of the prompt and of the answer, and anchors. No block of the first document reaches the second's answer."""
WINDOW, EPSILON = 12, 1e-5
DECAY = Objective(weighting="decay", decay=4.0)


@dataclass(frozen=True, kw_only=True)
class Documents:
    texts: list[torch.Tensor]
    supervised: list[torch.Tensor]
    anchors: list[np.ndarray]

    @property
    def lengths(self) -> list[int]:
        return [len(text) for text in self.texts]

    def in_rows(self) -> TrainingBatch:
        pad = torch.nn.utils.rnn.pad_sequence
        return TrainingBatch(
            input_ids=pad(self.texts, batch_first=True),
            loss_mask=pad(self.supervised, batch_first=True),
            documents=in_rows(self.lengths),
            blocks=place_blocks(self.anchors, in_rows(self.lengths), width=max(self.lengths)),
        )

    def in_one_row(self) -> TrainingBatch:
        return TrainingBatch(
            input_ids=torch.cat(self.texts)[None],
            loss_mask=torch.cat(self.supervised)[None],
            documents=end_to_end(self.lengths),
            blocks=place_blocks(self.anchors, end_to_end(self.lengths), width=sum(self.lengths)),
        )


@pytest.fixture(scope="module")
def documents(answered) -> Documents:
    texts = [answered(prompt, answer) for prompt, answer, _ in DOCUMENTS]
    assert all(len(set(text.tolist())) > 12 for text in texts)
    supervised = [torch.arange(prompt + answer) >= prompt for prompt, answer, _ in DOCUMENTS]
    anchors = [
        sample_anchors(mask.numpy(), share=1.0, most=most, seed=0, epoch=0, sample_id=0)
        for mask, (_, _, most) in zip(supervised, DOCUMENTS, strict=True)
    ]
    return Documents(texts=texts, supervised=supervised, anchors=anchors)


@pytest.mark.parametrize("layout", [Documents.in_rows, Documents.in_one_row])
@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize(
    ("objective", "their_objective"),
    [
        (DECAY, {"loss": "ce"}),
        (Objective(weighting="decay", decay=7.0), {"loss": "ce", "gamma": 7.0}),
        (Objective(weighting="dpace", decay=4.0), {"loss": "ce", "per_position_loss_weight": "dpace"}),
        (Objective(weighting="decay", decay=4.0, kl=1.0), {"loss": "kl_div"}),
        (Objective(weighting="decay", decay=4.0, kl=0.3), {"loss": '{"ce": 0.7, "kl_div": 0.3}'}),
    ],
    ids=["decay 4", "decay 7", "d-pace", "divergence", "both"],
)
def test_loss_and_gradients_are_equal(
    talking_dir, tmp_path, monkeypatch, documents, layout, window, objective, their_objective
):
    theirs = load(convert(tiny_config(window=window), talking_dir, tmp_path))
    expected = their_loss(theirs, documents, monkeypatch, **their_objective)
    expected.backward()
    if window is not None:
        monkeypatch.setattr(masks, "sees", counted_from_the_anchor)
        monkeypatch.setattr(masks, "_context", whole_context)
    ours = load_drafter(tmp_path / "d")
    loss = our_loss(ours, talking_dir, layout(documents), objective)
    loss.backward()
    assert_same_loss(loss, expected)
    assert_same_gradients(ours, theirs)


def test_our_window_is_another(talking_dir, tmp_path, monkeypatch, documents):
    """Without this, a window that no slot feels would pass above."""
    theirs = load(convert(tiny_config(window=WINDOW), talking_dir, tmp_path))
    expected = their_loss(theirs, documents, monkeypatch, loss="ce")
    loss = our_loss(load_drafter(tmp_path / "d"), talking_dir, documents.in_rows(), DECAY)
    assert abs(float(loss.detach()) - float(expected.detach())) > 1e-3


def test_the_converter_takes_the_export_whole(talking_dir, tmp_path):
    config = tiny_config()
    converted = convert(config, talking_dir, tmp_path)
    raw = json.loads((converted / "config.json").read_text())
    assert raw["aux_hidden_state_layer_ids"] == [tap + 1 for tap in TAPS]
    assert (raw["block_size"], raw["mask_token_id"]) == (config.block_size, MASK_TOKEN)
    (proposal,) = raw["speculators_config"]["proposal_methods"]
    assert proposal["speculative_tokens"] == config.block_size - 1
    ours, theirs = load_file(tmp_path / "d/model.safetensors"), load_file(converted / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


NOT_OURS = {"auto_map", "transformers_version"}
"""Of a class that their saving copies beside the weights, and of the library: no server reads either."""
LIBRARY_DEFAULTS = {"bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "transformers_version"}
"""What their converter adds to the layers' config, as transformers fills it in when it reads ours."""


@pytest.mark.parametrize("window", [None, WINDOW])
def test_our_speculators_form_is_what_the_converter_makes(talking_dir, tmp_path, window):
    config = tiny_config(window=window)
    theirs, ours = convert(config, talking_dir, tmp_path), speculators_export(config, talking_dir, tmp_path / "ours")
    made, written = (json.loads((folder / "config.json").read_text()) for folder in (theirs, ours))
    of_layers, our_layers = made.pop("transformer_layer_config"), written.pop("transformer_layer_config")
    assert {key: written.get(key, "missing") for key in made.keys() - NOT_OURS} == {
        key: made[key] for key in made.keys() - NOT_OURS
    }
    assert written.keys() - made.keys() == {"num_target_layers"}
    assert {key: our_layers.get(key, "missing") for key in of_layers.keys() - LIBRARY_DEFAULTS} == {
        key: of_layers[key] for key in of_layers.keys() - LIBRARY_DEFAULTS
    }
    # Both customary places of the rotary base, as in z-lab's form.
    assert our_layers.keys() - of_layers.keys() == {"rope_theta", "rope_scaling"}
    tensors, expected = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("window", [None, WINDOW])
def test_their_loader_reads_our_speculators_form(talking_dir, tmp_path, monkeypatch, documents, window):
    config = tiny_config(window=window)
    theirs = load(convert(config, talking_dir, tmp_path))
    ours = load(speculators_export(config, talking_dir, tmp_path / "ours"))
    assert ours.config.aux_hidden_state_layer_ids == [tap + 1 for tap in TAPS]
    expected, found = theirs.state_dict(), ours.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    losses_of = [float(their_loss(module, documents, monkeypatch, loss="ce").detach()) for module in (theirs, ours)]
    assert losses_of[0] == losses_of[1]


def test_a_converted_folder_is_read_by_ours(talking_dir, tmp_path):
    """Their form does not say how deep the target is: the least that has these taps is taken."""
    config = tiny_config()
    loaded = load_drafter(convert(config, talking_dir, tmp_path))
    assert loaded.config == replace(config, num_target_layers=TAPS[-1] + 2)
    checks = {check.name: check.ok for check in verify_export(tmp_path / "converted", talking_dir)}
    assert (checks["target"], checks["tensors"], checks["decoding"]) == (True, True, True)


def speculators_export(config, target_dir, folder):
    verifier = Verifier(name_or_path=str(target_dir), architectures=("Qwen3ForCausalLM",))
    state = strong_drafter(config).state_dict()
    export_drafter(config, state, target_dir=target_dir, out=folder, card="", verifier=verifier)
    return folder


def convert(config, target_dir, folder):
    export_drafter(config, strong_drafter(config).state_dict(), target_dir=target_dir, out=folder / "d", card="")
    converter.DFlashConverter().convert(folder / "d", folder / "converted", str(target_dir), validate=True)
    return folder / "converted"


def load(converted):
    """With dense attention: their own kind needs a GPU."""
    config = core.DFlashSpeculatorConfig.from_pretrained(converted)
    config.transformer_layer_config._attn_implementation = "eager"
    return core.DFlashDraftModel.from_pretrained(converted, config=config)


def their_loss(module, documents: Documents, monkeypatch, *, loss: str, **settings) -> torch.Tensor:
    """One packed row: both documents, as much padding as a block, and two places without an anchor."""
    starts = np.cumsum([0, *documents.lengths[:-1]])
    anchors = torch.from_numpy(
        np.concatenate([a + s for a, s in zip(documents.anchors, starts, strict=True)] + [[0, 0]])
    )
    keep = torch.arange(len(anchors)) < len(anchors) - 2
    monkeypatch.setattr(core, "select_anchors", lambda *_: (anchors, keep))

    target = tiny_model(seed=3).eval()
    last: list[torch.Tensor] = []
    target.model.layers[-1].register_forward_hook(lambda _m, _i, output: last.append(output[0]))
    features = [tapped(target, text[None], TAPS)[0] for text in documents.texts]
    padding = module.block_size
    _, found, _ = module(
        hidden_states=packed(features, padding),
        input_ids=packed(documents.texts, padding),
        loss_mask=packed(documents.supervised, padding).float(),
        verifier_last_hidden_states=packed(last, padding),
        document_ids=packed([torch.full((n,), i) for i, n in enumerate(documents.lengths)], padding, fill=-1),
        position_ids=packed([torch.arange(n) for n in documents.lengths], padding),
        loss_config=losses.resolve_loss_config(loss, "eager"),
        max_anchors=len(anchors),
        **settings,
    )
    return found


def packed(parts: list[torch.Tensor], padding: int, *, fill: int = 0) -> torch.Tensor:
    whole = torch.cat(parts)
    return torch.cat((whole, whole.new_full((padding, *whole.shape[1:]), fill)))[None]


def our_loss(drafter, target_dir, batch: TrainingBatch, objective: Objective) -> torch.Tensor:
    target = FrozenTarget.load(target_dir, tap_layer_ids=drafter.config.tap_layer_ids)
    slots = supervised_slots(batch.loss_mask, batch.blocks, block_size=drafter.config.block_size)
    parts = micro_batch_loss(drafter, target, batch, planned_weights(slots, objective), objective)
    return parts.loss_sum / (slots.sum() + EPSILON)


def counted_from_the_anchor(blocks: Blocks, *, block_size: int, window: int | None):
    """Their window: slot j sees j + 1 positions more than serving engines let it see."""
    rule = sees(blocks, block_size=block_size, window=window)
    if window is None:
        return rule

    def slot_sees_key(row, head, slot, key):
        block, of_context = slot // block_size, key < blocks.num_context
        near = (key >= blocks.context_ends[block] - window) & (key < blocks.context_ends[block])
        return torch.where(of_context, near & (key >= blocks.context_starts[block]), rule(row, head, slot, key))

    return slot_sees_key


sees = masks.sees


def whole_context(cut, _window):
    return slice(cut.first_context, cut.end_context)
