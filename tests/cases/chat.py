"""`ch_`: rows through the chat template and the tokenizer that the case names, both from its `fixtures/`."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash_pipeline.contracts.conversation import Conversation
from dflash_pipeline.contracts.sample import Sample
from dflash_pipeline.ingest.chat import ChatRenderer
from dflash_pipeline.ingest.conversation import derived_id, read_turns, row_id
from dflash_pipeline.ingest.rows import RowError
from dflash_pipeline.ingest.tokenise import TokenRule, tokenise

LONGEST = 2**20


def observe(path: Path) -> dict[str, Any]:
    case = json.loads(path.read_text(encoding="utf-8"))
    rows = case["rows"] if "rows" in case else [case["row"]]
    fixtures = path.parent / "fixtures"
    with tempfile.TemporaryDirectory(prefix="dflash-case-") as folder:
        renderer = ChatRenderer(
            tokenizer_folder(fixtures / case["tokenizer"], Path(folder)), fixtures / case["template"]
        )
        facts: dict[str, Any] = {
            "rows": [_row_facts(row, renderer, case, case.get("supervise", "all")) for row in rows]
        }
        if "supervise" not in case:
            facts["last_turn_only"] = [_row_facts(row, renderer, case, "last") for row in rows]
    # The common case of one row can be read without going through a list.
    return facts if len(rows) > 1 else facts["rows"][0] | facts


def tokenizer_folder(tokenizer: Path, folder: Path) -> Path:
    """A folder in Hugging Face form around a tokenizer file."""
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return folder


def conversation_of(row: Mapping[str, Any], *, line: int = 1) -> Conversation:
    """The row as ingestion reads it; `RowError` if it does not take it."""
    turns = read_turns(row, {})
    return Conversation(
        conversation_id=row_id(row) or derived_id(turns.digest),
        messages=turns.messages,
        tools=turns.tools,
        split="train",
        file="case",
        line=line,
    )


def _row_facts(
    row: Mapping[str, Any], renderer: ChatRenderer, case: Mapping[str, Any], supervise: Any
) -> dict[str, Any]:
    try:
        conversation = conversation_of(row)
    except RowError as fault:
        return {"id": row.get("id"), "rejected": fault.reason}
    [outcome] = tokenise(
        [conversation],
        renderer,
        TokenRule(
            max_length=case.get("max_length", LONGEST),
            overlong=case.get("overlong", "truncate"),
            supervise=supervise,
        ),
    )
    if not isinstance(outcome, Sample):
        return {"id": outcome.conversation_id, "dropped": outcome.reason}
    return {"id": outcome.conversation_id} | _sample_facts(outcome, renderer)


def _sample_facts(sample: Sample, renderer: ChatRenderer) -> dict[str, Any]:
    ids = sample.input_ids
    mask = np.zeros(ids.size, dtype=np.uint8)
    for start, end in sample.spans:
        mask[start:end] = 1
    added = {token_id: token.content for token_id, token in renderer.tokenizer.added_tokens_decoder.items()}
    counts = {text: int((ids == token_id).sum()) for token_id, text in added.items()}
    return {
        "num_tokens": sample.num_tokens,
        "num_supervised": sample.num_supervised,
        "supervised_text": _decoded(renderer, ids[mask == 1]),
        "text": _decoded(renderer, ids),
        "spans": [list(span) for span in sample.spans],
        "special_tokens": {text: count for text, count in counts.items() if count},
        "tokens_sha256": hashlib.sha256(ids.tobytes()).hexdigest(),
        "mask_sha256": hashlib.sha256(mask.tobytes()).hexdigest(),
    }


def _decoded(renderer: ChatRenderer, ids: Sequence[int] | np.ndarray) -> str:
    text = renderer.tokenizer.decode(list(map(int, ids)), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return str(text)
