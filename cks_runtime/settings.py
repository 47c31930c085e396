"""The settings of every program, read once from the environment, checked and frozen."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from cks_runtime.config import RuntimeConfig
from cks_runtime.model.knowledge import Limits

SECRET_BYTES_MIN = 32
SECRET_FILE_BYTES_MAX = 4096
TOOLSETS = ("core", "conflicts", "documents", "agent")
TASK_TYPES = (
    "gossip_conflict",
    "inference_conflict",
    "provenance_conflict",
    "temporal_conflict",
    "crdt_fork",
    "enrichment_request",
)
_YEAR_S = 31_536_000


class SettingsError(Exception):
    """A variable is wrong; the text is the one line to show: variable, value and what is allowed."""


def _off(value: object) -> object:
    return None if isinstance(value, str) and value.strip().lower() == "off" else value


def _items(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(item.strip() for item in value.split(",") if item.strip())


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _upper(value: object) -> object:
    return value.strip().upper() if isinstance(value, str) else value


def _database(value: str) -> str:
    if value == ":memory:" or value.startswith(("postgresql://", "postgres://")):
        return value
    if "://" in value or "\0" in value:
        raise ValueError("neither a path nor a database address")
    return _expanded(value)


def _expanded(value: str) -> str:
    try:
        return str(Path(value).expanduser())
    except RuntimeError as error:  # a user that does not exist
        raise ValueError(str(error)) from error


def _path(value: str) -> str:
    if "\0" in value:
        raise ValueError("not a path")
    return _expanded(value)


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise ValueError("not an http(s) URL")
    _ = parts.port  # raises ValueError when out of range
    return value.rstrip("/")


def _peer(value: str) -> str:
    url = _url(value)
    parts = urlsplit(url)
    if parts.port is None or parts.path:
        raise ValueError("not http://host:port")
    return url


def _api_base(value: str) -> str:
    url = _url(value)
    if url.endswith("/v1"):
        raise ValueError("ends in /v1")
    return url


def _peers(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_peer(item) for item in value))


def _host(value: str) -> str:
    if not value.strip() or any(part in value for part in "/@ ") or "://" in value:
        raise ValueError("not a host name or address")
    return value.strip("[]")


def _each_of(allowed: tuple[str, ...]) -> AfterValidator:
    def check(value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or any(item not in allowed for item in value):
            raise ValueError("not in the list")
        return tuple(dict.fromkeys(value))

    return AfterValidator(check)


def _long_enough(value: SecretStr | None) -> SecretStr | None:
    if value is not None and len(value.get_secret_value().encode()) < SECRET_BYTES_MIN:
        raise ValueError("too short")
    return value


def _var(name: str, allowed: str, default: Any, **checks: Any) -> Any:
    return Field(default, validation_alias=name, description=allowed, **checks)


Interval = Annotated[
    Annotated[float, Field(gt=0, le=_YEAR_S, allow_inf_nan=False)] | None, BeforeValidator(_off)
]
Seconds = Annotated[float, Field(gt=0, le=100 * _YEAR_S, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Items = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_items)]
Url = Annotated[str, AfterValidator(_url)]
Host = Annotated[str, AfterValidator(_host)]
File = Annotated[str | None, AfterValidator(lambda value: None if value is None else _path(value))]

_INTERVAL = "a number of seconds above 0, or off"
_SECONDS = "a number of seconds above 0"
_PORT = "a port from 1 to 65535"
_URL = "an http:// or https:// URL"
_HOST = "a host name or IP address"
_FILE = "a readable file that holds the secret"
_SECRET = "a text that is not empty"  # noqa: S105 (a description)
_LONG_SECRET = f"at least {SECRET_BYTES_MIN} bytes (cks-mcp secret prints one)"


class Settings(BaseSettings):
    """One field a variable. A field's description is what the variable allows, as the error line says it."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", case_sensitive=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    db_path: Annotated[str, AfterValidator(_database)] = _var(
        "CKS_MCP_DB_PATH",
        "a file path, :memory: or postgresql://…",
        "~/.cks-mcp/cks_mcp.db",
        validate_default=True,
        repr=False,
    )
    sqlite_synchronous: Annotated[Literal["FULL", "NORMAL"], BeforeValidator(_upper)] = _var(
        "CKS_SQLITE_SYNCHRONOUS", "FULL or NORMAL", "FULL"
    )
    default_session: str = _var(
        "CKS_DEFAULT_SESSION",
        "a session id: 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit",
        "main",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    max_request_bytes: int = _var(
        "CKS_MAX_REQUEST_BYTES", "a number of bytes from 1 to 1000000000", 5_000_000, ge=1, le=1_000_000_000
    )
    max_objects: int = _var("CKS_MAX_OBJECTS", "a number from 1 to 10000000", 100_000, ge=1, le=10_000_000)
    max_object_bytes: int = _var(
        "CKS_MAX_OBJECT_BYTES", "a number of bytes from 1 to 1048576", 262_144, ge=1, le=1_048_576
    )
    toolsets: Annotated[Items, _each_of(TOOLSETS)] = _var(
        "CKS_TOOLSETS",
        f"a list, separated by commas, of {', '.join(TOOLSETS)}",
        ("core", "conflicts", "documents"),
    )

    mcp_secret: SecretStr | None = _var("CKS_MCP_SECRET", _SECRET, None)
    mcp_secret_file: File = _var("CKS_MCP_SECRET_FILE", _FILE, None)

    inference_sweep_interval: Interval = _var("CKS_INFERENCE_SWEEP_INTERVAL", _INTERVAL, 300.0)
    provenance_sweep_interval: Interval = _var("CKS_PROVENANCE_SWEEP_INTERVAL", _INTERVAL, 3600.0)
    temporal_sweep_interval: Interval = _var("CKS_TEMPORAL_SWEEP_INTERVAL", _INTERVAL, 3600.0)
    provenance_ttl_seconds: Seconds = _var("CKS_PROVENANCE_TTL_SECONDS", _SECONDS, 2_592_000.0)

    gossip_enabled: bool = _var("CKS_GOSSIP_ENABLED", "true or false", False)
    gossip_peers: Annotated[Items, AfterValidator(_peers)] = _var(
        "CKS_GOSSIP_PEERS", "addresses http://host:port, separated by commas", ()
    )
    gossip_host: Host = _var("CKS_GOSSIP_HOST", _HOST, "127.0.0.1")
    gossip_port: Port = _var("CKS_GOSSIP_PORT", _PORT, 8765)
    gossip_interval_s: Seconds = _var("CKS_GOSSIP_INTERVAL_S", _SECONDS, 5.0)
    gossip_secret: Annotated[SecretStr | None, AfterValidator(_long_enough)] = _var(
        "CKS_GOSSIP_SECRET", _LONG_SECRET, None
    )
    gossip_secret_file: File = _var("CKS_GOSSIP_SECRET_FILE", _FILE, None)

    http_host: Host = _var("CKS_MCP_HTTP_HOST", _HOST, "127.0.0.1")
    http_port: Port = _var("CKS_MCP_HTTP_PORT", _PORT, 8769)
    http_token: SecretStr | None = _var("CKS_MCP_HTTP_TOKEN", _SECRET, None)
    http_token_file: File = _var("CKS_MCP_HTTP_TOKEN_FILE", _FILE, None)
    allowed_hosts: Items = _var("CKS_MCP_ALLOWED_HOSTS", "host names, separated by commas", ())

    llm_provider: Annotated[Literal["auto", "ollama", "anthropic"], BeforeValidator(_lower)] = _var(
        "CKS_LLM_PROVIDER", "auto, ollama or anthropic", "auto"
    )
    llm_model: str | None = _var("CKS_LLM_MODEL", "the name of a model", None, max_length=200)
    ollama_host: Url = _var("CKS_OLLAMA_HOST", _URL, "http://127.0.0.1:11434")
    anthropic_api_key: SecretStr | None = _var("ANTHROPIC_API_KEY", _SECRET, None)
    anthropic_api_key_file: File = _var("ANTHROPIC_API_KEY_FILE", _FILE, None)
    anthropic_base_url: Annotated[str, AfterValidator(_api_base)] = _var(
        "CKS_ANTHROPIC_BASE_URL", _URL + " without /v1 at its end", "https://api.anthropic.com"
    )

    outbox_lease_s: Seconds = _var("CKS_OUTBOX_LEASE_S", _SECONDS, 120.0)
    outbox_attempts_max: int = _var("CKS_OUTBOX_ATTEMPTS_MAX", "a number from 1 to 1000", 5, ge=1, le=1000)

    critic_poll_interval_s: Seconds = _var("CKS_CRITIC_POLL_INTERVAL", _SECONDS, 5.0)
    critic_max_retries: int = _var("CKS_CRITIC_MAX_RETRIES", "a number from 1 to 1000", 5, ge=1, le=1000)
    critic_task_types: Annotated[Items, _each_of(TASK_TYPES)] = _var(
        "CKS_CRITIC_TASK_TYPES",
        f"a list, separated by commas, of {', '.join(TASK_TYPES)}",
        ("gossip_conflict", "inference_conflict", "provenance_conflict"),
    )
    critic_temporal_action: Annotated[
        Literal["leave", "bump", "archive", "ignore"], BeforeValidator(_lower)
    ] = _var("CKS_CRITIC_TEMPORAL_ACTION", "leave, bump, archive or ignore", "leave")

    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)] = _var(
        "CKS_LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR", "INFO"
    )
    log_format: Annotated[Literal["console", "json"], BeforeValidator(_lower)] = _var(
        "CKS_LOG_FORMAT", "console or json", "console"
    )

    @model_validator(mode="before")
    @classmethod
    def _read_secret_files(cls, values: Any) -> Any:
        """A `…_FILE` variable stands for the secret it holds."""
        if not isinstance(values, dict):
            return values
        read = dict(values)
        for variable in _SECRET_VARIABLES:
            path = read.get(variable + "_FILE")
            if isinstance(path, str):
                if read.get(variable):
                    raise ValueError(f"{variable} and {variable}_FILE are both set: give only one of them")
                read[variable] = _secret_in(variable + "_FILE", path)
        return read

    @model_validator(mode="after")
    def _gossip_needs_a_secret(self) -> Self:
        if self.gossip_enabled and self.gossip_secret is None:
            raise ValueError(
                f"CKS_GOSSIP_SECRET is not set and CKS_GOSSIP_ENABLED is true: allowed is {_LONG_SECRET}"
            )
        return self

    def check_http(self) -> None:
        """Raises SettingsError when the HTTP port would be open to the network without a token."""
        if self.http_host not in ("127.0.0.1", "::1", "localhost") and self.http_token is None:
            raise SettingsError(
                f"CKS_MCP_HTTP_HOST={self.http_host!r} is not allowed without CKS_MCP_HTTP_TOKEN: "
                "set a token, or use 127.0.0.1"
            )

    def runtime_config(self) -> RuntimeConfig:
        """What these settings mean for the runtime."""
        secret = self.mcp_secret or self.gossip_secret
        return RuntimeConfig(
            db_path=self.db_path,
            sqlite_synchronous=self.sqlite_synchronous,
            default_session=self.default_session,
            limits=Limits(self.max_request_bytes, self.max_objects, self.max_object_bytes),
            record_secret=None if secret is None else secret.get_secret_value().encode(),
            inference_sweep_interval=self.inference_sweep_interval,
            provenance_sweep_interval=self.provenance_sweep_interval,
            temporal_sweep_interval=self.temporal_sweep_interval,
            provenance_ttl_seconds=self.provenance_ttl_seconds,
            outbox_lease_s=self.outbox_lease_s,
            outbox_attempts_max=self.outbox_attempts_max,
        )

    def secrets(self) -> tuple[str, ...]:
        """Every secret there is, for the log to keep out."""
        held = (self.mcp_secret, self.gossip_secret, self.http_token, self.anthropic_api_key)
        found = [one.get_secret_value() for one in held if one is not None]
        if "://" in self.db_path and (password := urlsplit(self.db_path).password):
            found.append(password)
        return tuple(found)


_SECRET_VARIABLES = ("CKS_MCP_SECRET", "CKS_GOSSIP_SECRET", "CKS_MCP_HTTP_TOKEN", "ANTHROPIC_API_KEY")


def _secret_in(variable: str, path: str) -> str:
    try:
        with open(_path(path), "rb") as file:
            data = file.read(SECRET_FILE_BYTES_MAX + 1)
        text = data.decode("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"{variable}={path!r} is not allowed: {_FILE} ({reason})") from None
    if not text or len(data) > SECRET_FILE_BYTES_MAX:
        raise ValueError(f"{variable}={path!r} is not allowed: {_FILE} (it is empty or too long)")
    return text


def load_settings() -> Settings:
    """The settings of this process. Raises SettingsError for the first wrong variable."""
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsError(_line(error)) from None


def _line(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    variable = str(first["loc"][0]) if first["loc"] else ""
    for field in Settings.model_fields.values():
        if field.validation_alias == variable:
            return f"{variable}={_shown(variable)} is not allowed: {field.description}"
    # Checks over several variables word their line themselves.
    return first["msg"].removeprefix("Value error, ")


def _shown(variable: str) -> str:
    value = os.environ.get(variable, "")
    if variable in _SECRET_VARIABLES:
        return "(hidden)"
    if variable == "CKS_MCP_DB_PATH" and "@" in value:
        value = value.split("://")[0] + "://…@" + value.rsplit("@", 1)[1]
    return repr(value if len(value) <= 200 else value[:200] + "…")


def settings_or_exit(program: str) -> Settings:
    """The settings, or one line on stderr and exit code 2."""
    try:
        return load_settings()
    except SettingsError as error:
        fail(program, error)


def fail(program: str, error: Exception) -> NoReturn:
    """One line on stderr and exit code 2, for whatever keeps a program from starting."""
    print(f"{program}: {error}", file=sys.stderr)
    raise SystemExit(2)
