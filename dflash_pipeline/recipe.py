"""Everything a user may set, from one YAML file. Paths are relative to the recipe's own folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.recipe_text import in_words, read_yaml

MAX_EPOCHS = 64
"""Dagster's epoch partitions are the static keys 000 to 063."""


Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Mapped = Literal["system", "user", "assistant", "messages", "text", "tools", "id"]
Format = Literal["jsonl", "json", "parquet", "csv", "tsv", "lines", "document"]
"""`lines`: raw text, a document a line. `document`: a file that is one document."""


class Source(Section):
    """Where rows come from."""

    path: Path = Field(description="A file, a folder or a pattern. The name of a file that exists is meant literally.")
    map: dict[Mapped, str] = Field(
        default_factory=dict,
        description="Which field holds what, for rows whose field names are not known; empty to tell by the names.",
    )
    format: Format | None = Field(
        None, description="Null to tell by the content. `lines`: a text document a line; `document`: the whole file."
    )
    weight: float = Field(
        1.0, gt=0, le=100, description="How often each training conversation stands in the snapshot; 0.5: half of them."
    )


class Data(Section):
    """Which conversations, and how they are cut."""

    sources: Annotated[list[Source], Field(min_length=1)]
    max_rows: int | None = Field(None, ge=1, description="Use only the first rows of each file; null for all.")
    max_row_bytes: int = Field(64 * 2**20, ge=1, description="A longer row is rejected as row_too_large.")
    max_depth: int = Field(64, ge=1, le=256, description="Brackets inside brackets; a deeper row is rejected.")
    max_unpacked_bytes: int = Field(2**36, ge=1, description="A compressed file that unpacks to more is not taken.")
    max_unpacked_ratio: float = Field(
        200.0, ge=1, description="Nor one that unpacks to this many times its size, and to more than 16 MiB."
    )
    rejection_warn: float = Field(
        0.05, ge=0, le=1, description="A larger share of rejected rows is warned of; prompts to be answered aside."
    )
    rejection_block: float = Field(0.5, ge=0, le=1, description="A larger share stops what comes after.")
    validation_fraction: float = Field(
        0.02, ge=0, le=0.5, description="Share of conversations held out, by a hash of the first user message."
    )
    max_length: int = Field(8192, ge=2, description="Longest sample in tokens.")
    overlong: Literal["truncate", "drop"] = Field(
        "truncate", description="What happens to a longer sample at tokenisation."
    )
    supervise: Literal["all", "last"] = Field("all", description="Which assistant turns carry the loss.")
    supervise_thinking: bool = Field(True, description="Whether thoughts carry it too, with the tags around them.")
    supervise_generation_prefix: bool = Field(
        False, description="Whether what the prompt or template opens after the role header (`<think>`) carries it."
    )
    processes: int | None = Field(None, ge=1, description="Processes that tokenise; null for one a core.")


class Target(Section):
    """The large model that is served."""

    path: Path = Field(description="A folder in Hugging Face format: config, weights, tokenizer, chat template.")
    chat_template: Path | None = Field(None, description="A Jinja file to use instead of the target's own template.")


class Responses(Section):
    """Answers by the target itself, in place of those of the files: what the drafter must learn to predict."""

    enabled: bool = True
    max_new_tokens: int = Field(2048, ge=1, description="Longest answer; a longer one is kept without an end marker.")
    batch_size: int = Field(64, ge=1, description="Prompts decoded together; results are saved after each batch.")


class Batching(Section):
    """How samples become micro-batches and steps."""

    strategy: Literal["sorted", "shuffle", "bucket", "window", "varlen"] = Field(
        "window", description="How samples share micro-batches and steps; `dflash forecast` compares them."
    )
    num_buckets: Annotated[int, Field(ge=1, le=512)] | Literal["auto"] = Field(
        6, description="Length buckets; auto for the knee of the efficiency curve."
    )
    boundary_objective: Literal["boundary", "batch-max"] = Field(
        "boundary",
        description="Boundaries of least padding up to themselves, or up to the expected longest of a micro-batch.",
    )
    boundary_grid: int = Field(1, ge=1, description="Boundaries are multiples of this; 64 suits static shapes.")
    padding: Literal["batch-max", "boundary"] = Field(
        "batch-max", description="Pad to the longest sample of the micro-batch, or (static shapes) to the boundary."
    )
    token_budget: int = Field(32768, ge=1, description="Most padded tokens in one micro-batch.")
    slots_per_step: int = Field(8, ge=1, description="Micro-batches in one optimiser step; ranks must divide it.")
    micro_batches_per_rank: int = Field(1, ge=1)
    quadratic_length: float | None = Field(
        None, gt=0, description="Length at which attention costs as much as the rest."
    )
    anchor_cost: float = Field(0.0, ge=0, description="Cost of one supervised token, in tokens; 0 to leave it out.")
    tail: Literal["fill", "drop"] = "fill"
    overlong: Literal["drop", "refuse"] = Field("refuse", description="A sample above the token budget.")
    epochs: int = Field(6, ge=1, le=MAX_EPOCHS)
    seed: int = Field(0, ge=0, lt=2**63)


class Drafter(Section):
    """The shape of the small model. What is not given follows the target."""

    num_layers: int = Field(5, ge=1, le=256)
    block_size: int = Field(
        16, ge=2, le=4096, description="Tokens of a block: the anchor and what is drafted after it."
    )
    tap_layer_ids: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, description="Target layers (0-based) whose outputs feed the drafter; null for the evenly spaced rule."
    )
    mask_token_id: int | None = Field(
        None,
        ge=0,
        description="Stands for positions to be drafted; null for the tokenizer's mask token or first unused row.",
    )
    intermediate_size: int | None = Field(None, ge=1)
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = Field(
        None, description="One a layer; null for full attention in all. Sliding layers look `sliding_window` back."
    )
    sliding_window: int | None = Field(None, ge=1, description="Positions, the query's own among them.")
    seed: int = Field(0, ge=0, lt=2**63)


class Training(Section):
    """One distributed run."""

    num_ranks: int = Field(
        8, ge=1, description="Processes; a divisor of slots_per_step. A launch fact, not part of the run's identity."
    )
    threads_per_rank: int = Field(1, ge=1)
    device: Literal["cpu", "cuda"] = "cpu"
    drafter_sharding: Literal["ddp", "fsdp"] = Field(
        "ddp", description="Each rank holds the drafter, its gradients and moments, or with `fsdp` only a part of them."
    )
    target_sharding: Literal["none", "fsdp"] = Field(
        "none", description="Each rank holds the target's layers, or with `fsdp` only a part of each of them."
    )
    activation_checkpointing: bool = Field(
        False, description="Less memory for activations, and about a third more work in the drafter."
    )
    compile: bool = Field(
        False, description="torch.compile for the drafter's layers: slow to start, faster steps; needs a C++ compiler."
    )
    learning_rate: float = Field(6e-4, gt=0, le=10)
    betas: tuple[Share, Share] = (0.9, 0.95)
    weight_decay: float = Field(0.0, ge=0)
    warmup_fraction: float = Field(0.04, ge=0, lt=1)
    end_fraction: float = Field(0.0, ge=0, le=1, description="Share of the learning rate in the last step.")
    max_gradient_norm: float = Field(1.0, gt=0)
    anchor_share: float | None = Field(
        None, ge=1e-6, le=1, description="Blocks trained a supervised token; null for 2 / block_size."
    )
    anchors_per_sample: int = Field(512, ge=1, description="Most blocks trained in one sample and epoch.")
    weighting: Literal["decay", "dpace"] = Field(
        "decay", description="Weights of a block's slots: fixed decay, or D-PACE, by what the drafter gets right."
    )
    decay: float | None = Field(
        None, ge=0.01, description="Gamma of the slot weights exp(-(j-1)/gamma); null for 7, 5 or 4 by block size."
    )
    dpace_smoothing: float = Field(0.5, ge=0, le=1, description="D-PACE's alpha.")
    kl: float = Field(
        0.0, ge=0, le=1, description="Share of the divergence from the target's own distribution in the loss."
    )
    keep_checkpoints: int = Field(2, description="Newest checkpoints kept; -1 for all.")
    checkpoint_steps: int | None = Field(
        None, ge=1, description="A checkpoint every so many steps, besides each epoch's end."
    )
    checkpoint_minutes: float | None = Field(
        30.0, gt=0, description="And when so much time has passed; null for never."
    )
    max_steps: int | None = Field(
        None, ge=1, lt=2**63, description="Stop after this many steps of the run, with a checkpoint; null for its end."
    )
    feature_cache_gib: float | None = Field(
        None,
        gt=0,
        description="Keep the target's features of all training samples on disk, up to so many GiB; null for none.",
    )
    step_timeout_seconds: float = Field(
        900.0, ge=1, le=1e7, description="A rank without progress for so long ends the run and says where it stands."
    )

    @model_validator(mode="after")
    def _keep(self) -> Training:
        if self.keep_checkpoints == 0 or self.keep_checkpoints < -1:
            raise ValueError("keep_checkpoints must be -1 (all) or at least 1; 0 would throw the run away")
        if self.kl > 0 and self.feature_cache_gib is not None:
            raise ValueError("kl needs the target's logits, which feature_cache_gib does not keep; use one of the two")
        return self


class Evaluation(Section):
    """Real draft-and-verify decoding on prompts that were not trained on."""

    prompts: Path | None = Field(
        None, description="JSONL with messages, question, prompt or turns; null for the validation side."
    )
    num_prompts: int = Field(64, ge=1)
    max_new_tokens: int = Field(64, ge=1)
    num_processes: int = Field(1, ge=1, description="Prompts are shared out among this many processes.")


class Schedule(Section):
    """When the retraining job runs, once its schedule is switched on in the Dagster page."""

    cron: str = "0 2 * * *"
    timezone: str = "UTC"


class Recipe(Section):
    """One recipe is one line of drafters: its name is the MLflow experiment and the key of its records."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    storage: Path = Field(Path("storage"), description="Relative to the working directory; DFLASH_STORAGE wins.")
    data: Data
    target: Target
    responses: Responses = Responses()
    batching: Batching = Batching()
    drafter: Drafter = Drafter()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    schedule: Schedule = Schedule()

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        slots = self.batching.slots_per_step
        if slots % self.training.num_ranks:
            raise ValueError(
                f"training.num_ranks {self.training.num_ranks} does not divide batching.slots_per_step {slots}; each "
                f"rank needs the same number of micro-batches in a step: use one of {_divisors(slots)}"
            )
        if self.training.compile and self.training.drafter_sharding == "fsdp":
            raise ValueError(
                "training.compile together with training.drafter_sharding fsdp is not supported: each layer would be "
                "compiled in parts that come and go; set one of them back"
            )
        if self.training.target_sharding == "fsdp" and self.batching.strategy == "varlen":
            raise ValueError(
                "training.target_sharding fsdp needs a target that all ranks run equally often, and batching.strategy "
                "varlen runs it once a document; use another strategy, or target_sharding none"
            )
        return self


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, min(number, 4096) + 1) if number % n == 0]


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; `overrides` are `section.key=value` with values in YAML. Refuses with every fault at once."""
    form = "see recipes/demo.yaml for the form"
    try:
        raw = read_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused("there is no such recipe", where=str(path), fix="give the path of a YAML file") from None
    except (ValueError, OSError) as error:
        raise Refused(f"not readable as YAML: {error}", where=str(path), fix=form) from None
    if not isinstance(raw, dict):
        raise Refused("not a mapping of sections", where=str(path), fix=form)
    for override in overrides:
        _apply(raw, override)
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        fix = "correct the recipe or the --set value" if overrides else "correct the recipe"
        raise Refused("; ".join(in_words(error, Recipe)), where=str(path), fix=fix) from None
    return _resolved(recipe, path.resolve().parent)


def _apply(raw: dict[str, Any], override: str) -> None:
    key, sign, value = override.partition("=")
    if not sign or not key.strip():
        raise Refused(f"{override!r} is not key=value", where="--set", fix="write for example --set batching.seed=7")
    *sections, last = key.strip().split(".")
    here: Any = raw
    for section in sections:
        here = _step_into(here, section)
    place: Any = _index(here, last) if isinstance(here, list) else last if isinstance(here, dict) else None
    if place is None:
        raise Refused(f"{key} does not lead into the recipe", where="--set", fix="name sections as in the recipe file")
    try:
        here[place] = read_yaml(value)
    except ValueError:
        raise Refused(
            f"the value of {key} is not YAML", where="--set", fix="quote it as you would in a recipe"
        ) from None


def _step_into(here: Any, section: str) -> Any:
    """The section of that name, made when the recipe leaves it out; of a list, the item of that number."""
    if isinstance(here, list):
        number = _index(here, section)
        return None if number is None else here[number]
    return here.setdefault(section, {}) if isinstance(here, dict) else None


def _index(items: list[Any], text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) < len(items) else None


def _resolved(recipe: Recipe, folder: Path) -> Recipe:
    def at(path: Path) -> Path:
        return (folder / path).resolve()

    data = recipe.data.model_copy(
        update={"sources": [s.model_copy(update={"path": at(s.path)}) for s in recipe.data.sources]}
    )
    template = recipe.target.chat_template
    target = recipe.target.model_copy(
        update={"path": at(recipe.target.path), "chat_template": at(template) if template else None}
    )
    prompts = recipe.evaluation.prompts
    evaluation = recipe.evaluation.model_copy(update={"prompts": at(prompts) if prompts else None})
    return recipe.model_copy(update={"data": data, "target": target, "evaluation": evaluation})
