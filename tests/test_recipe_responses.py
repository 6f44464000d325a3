"""What a recipe may say of the target's answers, and what it may not."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from dflash_pipeline.recipe import Endpoint, Responses


@pytest.mark.parametrize("url", ["http://localhost:8000/v1", "https://[::1]:8000/v1/", "http://10.0.0.7/v1"])
def test_an_address_is_taken_without_its_last_slash(url):
    assert Endpoint(url=url, model="m").url == url.rstrip("/")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000/v1", "such as http://localhost:8000/v1"),
        ("ftp://localhost/v1", "such as http"),
        ("http://", "such as http"),
        ("http://me:secret@localhost/v1", "a key goes into api_key_env"),
        ("http://localhost/v1?key=secret", "a key goes into api_key_env"),
        ("http://localhost:port/v1", "not an address"),
        ("http://[::1/v1", "not an address"),
    ],
)
def test_an_address_holds_nothing_but_an_address(url, said):
    with pytest.raises(ValidationError, match=said) as refused:
        Endpoint(url=url, model="m")
    assert "secret" not in str(refused.value.errors()[0]["msg"])


@pytest.mark.parametrize("name", ["sk-123", "", "A B", "1A"])
def test_a_key_is_named_not_given(name):
    with pytest.raises(ValidationError):
        Endpoint(url="http://localhost/v1", model="m", api_key_env=name)


@pytest.mark.parametrize("drawn", [{"top_p": 0.9}, {"top_k": 5}, {"seed": 1}])
def test_what_greedy_does_not_use_is_refused(drawn):
    Responses(temperature=0.7, **drawn)
    with pytest.raises(ValidationError, match="temperature 0 is greedy"):
        Responses(**drawn)
