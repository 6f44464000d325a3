"""Errors say what, where and what to do; the class decides the exit code."""

from __future__ import annotations

import pytest

from dflash_pipeline.contracts.errors import ContractBroken, DflashError, Failed, Refused


@pytest.mark.parametrize(("kind", "code"), [(Refused, 2), (ContractBroken, 2), (Failed, 1), (DflashError, 1)])
def test_a_sentence_for_the_user(kind, code):
    error = kind("the disk is full", where="/storage", fix="free some space")
    assert str(error) == "/storage: the disk is full; free some space"
    assert error.as_json() == {"what": "the disk is full", "where": "/storage", "fix": "free some space"}
    assert error.exit_code == code
    assert error.args == ("the disk is full",)  # What a log shows of it with `repr`.
    assert isinstance(error, DflashError)


def test_a_broken_contract_is_a_refusal_and_a_value_error():
    assert issubclass(ContractBroken, Refused)
    assert issubclass(ContractBroken, ValueError)
    assert not issubclass(Failed, Refused)
