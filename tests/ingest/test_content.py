"""The digest of what a conversation says is that of plain JSON: snapshots made long ago find their tokens by it."""

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st

from dflash_pipeline.contracts.conversation import Conversation, Message, PreTokenised
from dflash_pipeline.ingest.content import content_digest

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def _digest(said):
    return hashlib.sha256(json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()).digest()


def _conversation(**form):
    return Conversation(conversation_id="1", split="train", file="f", line=1, **form)


@given(TEXT, TEXT, st.none() | TEXT, st.booleans())
def test_of_messages(asked, answered, thought, complete):
    answer = Message(role="assistant", content=answered, reasoning=thought, complete=complete, tool_calls=None)
    said = [["user", asked, True, None, None], ["assistant", answered, complete, thought, None]]
    conversation = _conversation(messages=(Message(role="user", content=asked), answer), tools='[{"é":1}]')
    assert content_digest(conversation) == _digest([said, '[{"é":1}]', None, None])


@given(TEXT.filter(bool))
def test_of_a_document(text):
    assert content_digest(_conversation(document=text)) == _digest([[], None, text, None])


def test_of_tokens():
    tokens = PreTokenised(token_ids=(3, 2**31 - 1), loss_mask=(False, True))
    said = [[], None, None, [[3, 2**31 - 1], [False, True]]]
    assert content_digest(_conversation(tokenised=tokens)) == _digest(said)
