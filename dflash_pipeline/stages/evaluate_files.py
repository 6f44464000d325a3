"""`dflash evaluate`: acceptance length of any exported drafter on any prompts, without a recipe."""

from __future__ import annotations

from pathlib import Path

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.evaluation.acceptance import AcceptanceReport
from dflash_pipeline.evaluation.choice import Choice
from dflash_pipeline.evaluation.decode_rows import Decoding
from dflash_pipeline.evaluation.export import read_config
from dflash_pipeline.evaluation.prompts import read_prompts
from dflash_pipeline.evaluation.shares import Candidate, measure_in_processes
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.model.loading import load_config, stop_token_ids
from dflash_pipeline.model.target_files import check_target_folder
from dflash_pipeline.store.files import HASH_LIST, folder_faults


def evaluate_files(
    draft: Path,
    target: Path,
    prompts: Path,
    *,
    num_prompts: int,
    max_new_tokens: int,
    num_processes: int,
    batch_size: int,
    choice: Choice,
    thinking: bool | None,
) -> AcceptanceReport:
    """`thinking` is what the target's chat template is told as `enable_thinking`; None tells it nothing."""
    if (draft / HASH_LIST).exists() and (faults := folder_faults(draft)):
        raise Refused(
            "; ".join(faults), where=str(draft), fix="export the drafter again, or see `dflash verify-export`"
        )
    read_config(draft)  # A folder that holds no drafter is refused before anything is loaded.
    check_target_folder(target)
    renderer = ChatRenderer(target, thinking=thinking)
    ids = read_prompts(prompts, render=renderer.prompt, tokenizer=renderer.tokenizer, limit=num_prompts)
    room = getattr(load_config(target).get_text_config(decoder=True), "max_position_embeddings", None)
    longest = max(len(prompt.ids) for prompt in ids)
    if room is not None and longest + max_new_tokens > room:
        raise Refused(
            f"a prompt of {longest} tokens and {max_new_tokens} more are beyond the target's {room} positions",
            where="--max-new-tokens",
            fix=f"lower it to {room - longest}" if longest < room else "leave such prompts out",
        )
    decoding = Decoding(
        max_new_tokens=max_new_tokens, stop_ids=stop_token_ids(target), batch_size=batch_size, choice=choice
    )
    return measure_in_processes(
        Candidate(export_dir=draft), ids, decoding, target_dir=target, num_processes=num_processes, device="cpu"
    )
