from dataclasses import replace

import pytest

from dflash_pipeline.contracts.candidate import DIGEST_BYTES, Candidate
from dflash_pipeline.contracts.errors import ContractBroken


def candidate(**changed) -> Candidate:
    whole = Candidate(
        conversation_id="a",
        messages=(),
        tools=None,
        document="text",
        tokenised=None,
        answered=True,
        line=7,
        byte_offset=0,
        excerpt="text",
        digest=bytes(DIGEST_BYTES),
        prompt_hash=2**64 - 1,
        size=4,
    )
    return replace(whole, **changed)


@pytest.mark.parametrize(
    "wrong",
    [
        {"conversation_id": ""},
        {"digest": bytes(DIGEST_BYTES - 1)},
        {"digest": bytes(DIGEST_BYTES + 1)},
        {"prompt_hash": 2**64},
        {"prompt_hash": -1},
    ],
)
def test_what_the_warehouse_could_not_hold_is_refused_with_its_line(wrong):
    assert candidate(prompt_hash=0).prompt_hash == 0
    with pytest.raises(ContractBroken, match="row at line 7"):
        candidate(**wrong)


def test_its_refusal_says_what_where_and_what_to_do():
    with pytest.raises(ContractBroken) as refused:
        candidate(digest=b"short")
    assert str(refused.value) == (
        f"row at line 7: id 'a', digest of 5 bytes, prompt hash {2**64 - 1}; "
        f"give an id, a digest of {DIGEST_BYTES} bytes and a hash of 64 bits"
    )
