"""The model registry follows what was decided, with a real SQLite store."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from dflash_pipeline.contracts.errors import Failed
from dflash_pipeline.tracking import registry
from dflash_pipeline.tracking.registry import VersionFacts, alias_holders, ensure_version, set_aliases, source_for
from dflash_pipeline.tracking.store_uri import CLIENT_ENVIRONMENT, tracking_uri


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    # One for all tests here: a new database takes seconds.
    storage = tmp_path_factory.mktemp("my storage 100%")
    (storage / "mlflow").mkdir()
    return tracking_uri(storage)


def facts(weights: str, **tags: str) -> VersionFacts:
    return VersionFacts(
        weights=weights, source=Path(f"/exports/a run/{weights}").as_uri(), mlflow_run_id="1" * 32, tags=tags
    )


def test_the_same_weights_are_one_version_whose_tags_are_brought_up_to_date(uri):
    first = ensure_version(uri, "lines.of-drafters", facts("a", decision="kept"))
    other = ensure_version(uri, "lines.of-drafters", facts("b"))
    assert (first, other) == (1, 2)
    assert ensure_version(uri, "lines.of-drafters", facts("a", decision="promoted", acceptance="3.5")) == 1
    version = MlflowClient(uri).get_model_version("lines.of-drafters", "1")
    assert version.tags == {"weights": "a", "decision": "promoted", "acceptance": "3.5"}
    assert version.source == "file:///exports/a%20run/a"
    assert version.run_id == "1" * 32
    assert ensure_version(uri, "another", facts("a")) == 1


def test_a_server_is_given_a_source_that_it_takes(uri):
    from mlflow.exceptions import MlflowException
    from mlflow.server.handlers import _validate_artifact_uri_scheme, _validate_source_run

    own = facts("a").source
    assert source_for(uri, own) == own
    given = source_for("http://127.0.0.1:5000", own)
    assert given == "dflash-export:/exports/a%20run/a"
    _validate_artifact_uri_scheme(given, "source")
    _validate_source_run(given, "1" * 32)
    # What a server would say otherwise.
    with pytest.raises(MlflowException, match="Invalid model version source"):
        _validate_source_run(own, "")


def test_aliases_are_set_moved_and_taken_away(uri):
    assert alias_holders(uri, "aliases") == {}
    one, two = (ensure_version(uri, "aliases", facts(name)) for name in ("a", "b"))
    set_aliases(uri, "aliases", {"challenger": one})
    assert alias_holders(uri, "aliases") == {"challenger": one}
    set_aliases(uri, "aliases", {"champion": one})
    assert alias_holders(uri, "aliases") == {"champion": one}
    set_aliases(uri, "aliases", {"champion": two, "previous": one})
    assert alias_holders(uri, "aliases") == {"champion": two, "previous": one}


def test_at_every_moment_somebody_is_champion_and_the_old_one_is_kept(uri, monkeypatch):
    old, new = (ensure_version(uri, "moments", facts(name)) for name in ("a", "b"))
    set_aliases(uri, "moments", {"champion": old, "challenger": new})
    seen = []
    monkeypatch.setattr(registry, "fault_point", lambda name: seen.append(alias_holders(uri, "moments")))
    set_aliases(uri, "moments", {"champion": new, "previous": old})
    assert [holders["champion"] for holders in seen] == [old, old, old, new]
    assert [holders.get("previous") for holders in seen] == [None, old, old, old]


def test_nothing_moves_when_all_is_as_it_should_be(uri, monkeypatch):
    one = ensure_version(uri, "still", facts("a"))
    set_aliases(uri, "still", {"champion": one})
    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", None)
    monkeypatch.setattr(MlflowClient, "delete_registered_model_alias", None)
    set_aliases(uri, "still", {"champion": one})


def test_a_registry_that_does_not_answer_is_said_in_a_sentence(monkeypatch):
    for name, value in CLIENT_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Failed, match="model registry did not take it") as failed:
        ensure_version("http://user:secret@127.0.0.1:9", "name", facts("a"))
    assert "not lost" in failed.value.fix
    assert "secret" not in str(failed.value)
