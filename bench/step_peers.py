"""The step of `bench/step.py` as two other packages take it: SpecForge's and speculators' own DFlash training modules.

Both are put into `.oracle` by `make oracle`. Drafter, features, anchors and the text are those of the file. SpecForge
computes the same loss. speculators learns from the target's best tokens instead of the text, in one packed row, so its
loss is another; its work is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from step import MAX_GRADIENT_NORM, Step, our_step
from step_inputs import initial_weights
from torch import Tensor, nn

from dflash_pipeline.model.config import DrafterConfig
from dflash_pipeline.model.zlab_json import to_zlab_json


def step_of(name: str, tensors: dict[str, Tensor], config: DrafterConfig, *, gamma: float, lr: float) -> Step:
    """Whose step: ours, `specforge` with chunks of the head or without, or `speculators`."""
    if name == "ours":
        return our_step(tensors, config, gamma=gamma, lr=lr)
    if name == "speculators":
        return _speculators_step(tensors, config, gamma=gamma, lr=lr)
    chunk = {"specforge": 128, "specforge, head whole": 0}[name]
    return _specforge_step(tensors, config, gamma=gamma, lr=lr, chunk=chunk)


PEERS = ("specforge", "specforge, head whole", "speculators")


def _specforge_step(tensors: dict[str, Tensor], config: DrafterConfig, *, gamma: float, lr: float, chunk: int) -> Step:
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
    from specforge.modeling.draft.dflash import DFlashDraftModel
    from transformers import Qwen3Config

    theirs = Qwen3Config(**to_zlab_json(config, "float32"))
    theirs._attn_implementation = "sdpa"
    draft = DFlashDraftModel(theirs)
    draft.load_state_dict(initial_weights(tensors))
    module = OnlineDFlashModel(
        draft,
        target_lm_head=_head(tensors["head"]),
        target_embed_tokens=nn.Embedding.from_pretrained(tensors["embed"]),
        mask_token_id=config.mask_token_id,
        block_size=config.block_size,
        attention_backend="sdpa",
        loss_decay_gamma=gamma,
        objective_chunk_blocks=chunk,
    )
    module._sample_anchor_positions = lambda *_: (tensors["anchors"], tensors["keep"])
    ids, features, mask = tensors["ids"], tensors["feat"], tensors["loss_mask"].float()
    return _stepping(draft, lambda: module(ids, features, mask)[0], lr)


def _speculators_step(tensors: dict[str, Tensor], config: DrafterConfig, *, gamma: float, lr: float) -> Step:
    from speculators.losses import resolve_loss_config
    from speculators.models.dflash import core

    module = _speculators_module(tensors, config)
    row = _PackedRow(tensors, padding=config.block_size)
    core.select_anchors = lambda *_: (row.anchors, row.keep)
    losses = resolve_loss_config("ce", "eager")

    def loss() -> Tensor:
        _, found, _ = module(
            hidden_states=row.features,
            input_ids=row.ids,
            loss_mask=row.loss_mask,
            verifier_last_hidden_states=row.last,
            document_ids=row.documents,
            position_ids=row.positions,
            loss_config=losses,
            gamma=gamma,
            max_anchors=len(row.anchors),
        )
        return found

    return _stepping(module, loss, lr)


class _PackedRow:
    """Rows end to end without their padding, and as much padding behind as a block."""

    def __init__(self, tensors: dict[str, Tensor], *, padding: int) -> None:
        lengths = tensors["lengths"].tolist()

        def packed(parts: list[Tensor], fill: int = 0) -> Tensor:
            whole = torch.cat(parts)
            return torch.cat((whole, whole.new_full((padding, *whole.shape[1:]), fill)))[None]

        def real(name: str) -> list[Tensor]:
            return [row[:length] for row, length in zip(tensors[name], lengths, strict=True)]

        self.features, self.ids, self.last = packed(real("feat")), packed(real("ids")), packed(real("last"))
        self.loss_mask = packed(real("loss_mask")).float()
        self.documents = packed([torch.full((length,), i) for i, length in enumerate(lengths)], fill=-1)
        self.positions = packed([torch.arange(length) for length in lengths])
        starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
        self.anchors = (tensors["anchors"] + starts[:, None])[tensors["keep"]]
        self.keep = torch.ones(len(self.anchors), dtype=torch.bool)


def _speculators_module(tensors: dict[str, Tensor], config: DrafterConfig) -> Any:
    """Their model of these sizes, as their converter would describe it; the target's tables are put in by hand."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import core
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import Qwen3Config

    layers = Qwen3Config(**to_zlab_json(config, "float32"))
    layers._attn_implementation = "sdpa"
    theirs = core.DFlashSpeculatorConfig(
        transformer_layer_config=layers,
        draft_vocab_size=config.vocab_size,
        block_size=config.block_size,
        aux_hidden_state_layer_ids=[tap + 1 for tap in config.tap_layer_ids],
        mask_token_id=config.mask_token_id,
        speculators_config=SpeculatorsConfig(
            algorithm="dflash",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=config.block_size - 1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
        ),
    )
    module = core.DFlashDraftModel(theirs)
    module.load_state_dict(initial_weights(tensors), strict=False)
    for name, table in (("embed_tokens", "embed"), ("lm_head", "head"), ("verifier_lm_head", "head")):
        getattr(module, name).weight = nn.Parameter(tensors[table], requires_grad=False)
    module.verifier_norm.weight = nn.Parameter(tensors["final_norm"], requires_grad=False)
    return module


def _stepping(model: nn.Module, loss_of: Any, lr: float) -> Step:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, MAX_GRADIENT_NORM)
        optimizer.step()
        return float(loss.detach())

    return step


def _head(weight: Tensor) -> nn.Linear:
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight = nn.Parameter(weight, requires_grad=False)
    return head
