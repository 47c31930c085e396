"""Settings: defaults, every variable's checks, and the one line for a wrong value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cks_runtime.settings import Settings, SettingsError, load_settings, settings_or_exit

SECRET = "correct-horse-battery-staple-0123456789"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("CKS_", "ANTHROPIC_")):
            monkeypatch.delenv(name)


def test_defaults_are_those_of_the_contract() -> None:
    found = load_settings()
    assert found.db_path == str(Path("~/.cks-mcp/cks_mcp.db").expanduser())
    assert found.sqlite_synchronous == "FULL" and found.default_session == "main"
    assert (found.max_request_bytes, found.max_objects, found.max_object_bytes) == (
        5_000_000,
        100_000,
        262_144,
    )
    assert (found.inference_sweep_interval, found.provenance_sweep_interval) == (300.0, 3600.0)
    assert found.temporal_sweep_interval == 3600.0 and found.provenance_ttl_seconds == 2_592_000
    assert not found.gossip_enabled and found.gossip_peers == () and found.gossip_secret is None
    assert (found.gossip_host, found.gossip_port, found.gossip_interval_s) == ("127.0.0.1", 8765, 5.0)
    assert (found.http_host, found.http_port) == ("127.0.0.1", 8769)
    assert found.llm_provider == "auto" and found.ollama_host == "http://127.0.0.1:11434"
    assert found.anthropic_base_url == "https://api.anthropic.com"
    assert (found.outbox_lease_s, found.outbox_attempts_max) == (120.0, 5)
    assert found.critic_task_types == ("gossip_conflict", "inference_conflict", "provenance_conflict")
    assert (found.critic_poll_interval_s, found.critic_max_retries) == (5.0, 5)
    assert found.critic_temporal_action == "leave"
    assert found.toolsets == ("core", "conflicts", "documents")
    assert (found.log_level, found.log_format) == ("INFO", "console")


GOOD: list[tuple[str, str, str, Any]] = [
    ("CKS_MCP_DB_PATH", ":memory:", "db_path", ":memory:"),
    ("CKS_MCP_DB_PATH", "postgresql://u@h/db", "db_path", "postgresql://u@h/db"),
    ("CKS_MCP_DB_PATH", "~/x.db", "db_path", str(Path("~/x.db").expanduser())),
    ("CKS_SQLITE_SYNCHRONOUS", "normal", "sqlite_synchronous", "NORMAL"),
    ("CKS_INFERENCE_SWEEP_INTERVAL", "off", "inference_sweep_interval", None),
    ("CKS_PROVENANCE_SWEEP_INTERVAL", "OFF", "provenance_sweep_interval", None),
    ("CKS_TEMPORAL_SWEEP_INTERVAL", "0.5", "temporal_sweep_interval", 0.5),
    ("CKS_PROVENANCE_TTL_SECONDS", "1", "provenance_ttl_seconds", 1.0),
    ("CKS_GOSSIP_PEERS", "http://a:1, http://b:2/,http://a:1", "gossip_peers", ("http://a:1", "http://b:2")),
    ("CKS_TOOLSETS", "core,agent", "toolsets", ("core", "agent")),
    ("CKS_MCP_ALLOWED_HOSTS", "a.example,b.example", "allowed_hosts", ("a.example", "b.example")),
    ("CKS_LLM_PROVIDER", "Ollama", "llm_provider", "ollama"),
    ("CKS_LOG_LEVEL", "debug", "log_level", "DEBUG"),
    ("CKS_CRITIC_TEMPORAL_ACTION", "bump", "critic_temporal_action", "bump"),
    ("CKS_MCP_HTTP_HOST", "[::1]", "http_host", "::1"),
    ("CKS_GOSSIP_PORT", "", "gossip_port", 8765),
]


@pytest.mark.parametrize(("variable", "text", "field", "value"), GOOD)
def test_good_values(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, field: str, value: Any
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(load_settings(), field) == value


BAD = [
    ("CKS_MCP_DB_PATH", "mysql://u:hidden-password@h/x"),
    ("CKS_SQLITE_SYNCHRONOUS", "OFF"),
    ("CKS_DEFAULT_SESSION", "a@b"),
    ("CKS_DEFAULT_SESSION", "ab\n"),
    ("CKS_DEFAULT_SESSION", "x" * 65),
    ("CKS_MAX_REQUEST_BYTES", "0"),
    ("CKS_MAX_OBJECTS", "1e3"),
    ("CKS_MAX_OBJECT_BYTES", "1048577"),
    ("CKS_INFERENCE_SWEEP_INTERVAL", "0"),
    ("CKS_INFERENCE_SWEEP_INTERVAL", "never"),
    ("CKS_PROVENANCE_SWEEP_INTERVAL", "-1"),
    ("CKS_TEMPORAL_SWEEP_INTERVAL", "nan"),
    ("CKS_TEMPORAL_SWEEP_INTERVAL", "inf"),
    ("CKS_PROVENANCE_TTL_SECONDS", "off"),
    ("CKS_GOSSIP_ENABLED", "maybe"),
    ("CKS_GOSSIP_PEERS", "http://a:1,b"),
    ("CKS_GOSSIP_PEERS", "http://a"),
    ("CKS_GOSSIP_PEERS", "http://user:pw@a:1"),
    ("CKS_GOSSIP_PEERS", "http://a:99999"),
    ("CKS_GOSSIP_HOST", "http://x"),
    ("CKS_GOSSIP_PORT", "65536"),
    ("CKS_GOSSIP_PORT", "http"),
    ("CKS_GOSSIP_SECRET", "short"),
    ("CKS_GOSSIP_INTERVAL_S", "0"),
    ("CKS_MCP_HTTP_PORT", "0"),
    ("CKS_LLM_PROVIDER", "other"),
    ("CKS_OLLAMA_HOST", "localhost:11434"),
    ("CKS_ANTHROPIC_BASE_URL", "https://api.example/v1"),
    ("CKS_ANTHROPIC_BASE_URL", "https://api.example/v1/"),
    ("CKS_OUTBOX_LEASE_S", "0"),
    ("CKS_OUTBOX_ATTEMPTS_MAX", "0"),
    ("CKS_CRITIC_TASK_TYPES", "gossip_conflict,other"),
    ("CKS_CRITIC_MAX_RETRIES", "x"),
    ("CKS_CRITIC_TEMPORAL_ACTION", "delete"),
    ("CKS_TOOLSETS", "core,extra"),
    ("CKS_TOOLSETS", ","),
    ("CKS_LOG_LEVEL", "loud"),
    ("CKS_LOG_FORMAT", "xml"),
    ("CKS_MCP_SECRET_FILE", "/nowhere/at/all"),
]


@pytest.mark.parametrize(("variable", "text"), BAD)
def test_a_wrong_value_is_one_line(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    line = str(caught.value)
    assert line.startswith(f"{variable}=") and "is not allowed: " in line and "\n" not in line
    if "SECRET" in variable and "FILE" not in variable:
        assert text not in line
    elif "password" in text:
        assert "hidden-password" not in line
    else:
        assert text[:20].strip() in line


def test_the_program_stops_with_code_2() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from cks_runtime.settings import settings_or_exit\nsettings_or_exit('cks-mcp')",
        ],
        env={**os.environ, "CKS_GOSSIP_PORT": "x"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "cks-mcp: CKS_GOSSIP_PORT='x' is not allowed: a port from 1 to 65535\n"


def test_good_settings_do_not_exit() -> None:
    assert settings_or_exit("cks-mcp") == load_settings()


def test_gossip_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKS_GOSSIP_ENABLED", "true")
    with pytest.raises(SettingsError, match=r"CKS_GOSSIP_SECRET is not set .* 32 bytes"):
        load_settings()
    monkeypatch.setenv("CKS_GOSSIP_SECRET", SECRET)
    assert load_settings().gossip_enabled


@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ("CKS_MCP_SECRET", "mcp_secret"),
        ("CKS_GOSSIP_SECRET", "gossip_secret"),
        ("CKS_MCP_HTTP_TOKEN", "http_token"),
        ("ANTHROPIC_API_KEY", "anthropic_api_key"),
    ],
)
def test_a_secret_may_stand_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, field: str
) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    monkeypatch.setenv(variable + "_FILE", str(path))
    found = load_settings()
    assert getattr(found, field).get_secret_value() == SECRET
    assert SECRET not in repr(found) and found.secrets() == (SECRET,)
    monkeypatch.setenv(variable, SECRET)
    with pytest.raises(SettingsError, match="both set"):
        load_settings()


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00", b"x" * 5000])
def test_a_bad_secret_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    monkeypatch.setenv("CKS_MCP_SECRET_FILE", str(path))
    with pytest.raises(SettingsError, match=r"CKS_MCP_SECRET_FILE=.*secret"):
        load_settings()


def test_a_short_secret_in_a_file_is_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("too-short-to-use")
    monkeypatch.setenv("CKS_GOSSIP_SECRET_FILE", str(path))
    with pytest.raises(SettingsError, match="32 bytes") as caught:
        load_settings()
    assert "too-short" not in str(caught.value)


def test_a_database_password_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKS_MCP_DB_PATH", "postgresql://u:hidden-password@h/x")
    found = load_settings()
    assert found.secrets() == ("hidden-password",) and "hidden-password" not in repr(found)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_an_open_http_port_needs_a_token(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    load_settings().check_http()
    monkeypatch.setenv("CKS_MCP_HTTP_HOST", host)
    with pytest.raises(SettingsError, match="CKS_MCP_HTTP_TOKEN"):
        load_settings().check_http()
    monkeypatch.setenv("CKS_MCP_HTTP_TOKEN", SECRET)
    load_settings().check_http()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load_settings().gossip_port = 1


def test_every_field_says_what_it_allows() -> None:
    for field in Settings.model_fields.values():
        assert isinstance(field.validation_alias, str) and field.description


def test_reading_settings_loads_nothing_of_the_protocol() -> None:
    program = """
import sys
import cks_runtime.settings, cks_mcp.lifecycle, cks_runtime.logs
print({"mcp", "mcp_types"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
