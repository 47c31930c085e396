"""The names that are public, and the settings that a runtime refuses."""

from __future__ import annotations

import pytest

import cks_runtime
import sweepers
from cks_runtime import InvalidParameter, RuntimeConfig, errors


@pytest.mark.parametrize("module", [cks_runtime, sweepers])
def test_public_names_exist_and_are_documented(module: object) -> None:
    for name in module.__all__:  # type: ignore[attr-defined]
        value = getattr(module, name)
        assert name == "EMPTY_GRAPH" or value.__doc__, name


def test_the_head_moved_error_is_not_the_event() -> None:
    assert issubclass(errors.HeadMoved, cks_runtime.CksError)
    assert issubclass(cks_runtime.HeadMoved, cks_runtime.Event)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inference_sweep_interval", -1),
        ("inference_sweep_interval", 0),
        ("temporal_sweep_interval", float("nan")),
        ("provenance_sweep_interval", float("inf")),
        ("provenance_ttl_seconds", -1.0),
        ("provenance_ttl_seconds", None),
        ("outbox_lease_s", 0),
        ("outbox_lease_s", True),
        ("outbox_attempts_max", 0),
        ("outbox_attempts_max", 2.5),
        ("sqlite_synchronous", "OFF"),
        ("default_session", "a b"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=name if name != "default_session" else "a b"):
        RuntimeConfig(**{name: value})  # type: ignore[arg-type]
