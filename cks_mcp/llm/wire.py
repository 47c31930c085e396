"""JSON over HTTP to a provider: bounded in time, size and tries; nothing a server says reaches an error."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import orjson

from cks_runtime.flow.clock import wall_ms
from cks_runtime.model.errors import LlmUnavailable

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES_MAX = 1_048_576
TRIES_MAX = 3
RETRY_AFTER_MAX_S = 20.0
"""A server that asks for a longer pause is given up at once: the caller can wait better than we can."""
PAUSE_S = 0.5
"""Before the second try where the server names no pause; doubled before the third, up to twice as long by chance."""
CONNECT_S = 5.0
PROBE_S = 2.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a provider listens. `headers` may hold a key, so they appear in nothing that is shown or logged.

    `timeout_s` is for one try, from connecting to the last byte.
    """

    provider: str
    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 120.0


class _Again(Exception):
    """This try failed in a way that another may not; `pause_s` is what the server asks for."""

    def __init__(self, error: LlmUnavailable, pause_s: float | None = None) -> None:
        self.error = error
        self.pause_s = pause_s


async def post_json(endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The object a provider answers.

    Tried up to three times on 429, 5xx and broken connections, pausing as `Retry-After` says, at most 20 s.
    Raises LlmUnavailable saying what to do.
    """
    data = orjson.dumps(body)
    async with _client(endpoint) as client:
        for attempt in range(1, TRIES_MAX + 1):
            try:
                with anyio.fail_after(endpoint.timeout_s):
                    return await _post(client, endpoint, path, data)
            except TimeoutError:
                raise LlmUnavailable(
                    f"{endpoint.provider} did not answer within {endpoint.timeout_s:g} s.",
                    "Try again, use a smaller model (CKS_LLM_MODEL), or decide by hand.",
                ) from None
            except _Again as again:
                if attempt == TRIES_MAX:
                    raise again.error from None
                pause_s = again.pause_s
                if pause_s is None:
                    pause_s = PAUSE_S * 2 ** (attempt - 1) * (1 + random.random())  # noqa: S311 (spreads load)
                if pause_s > RETRY_AFTER_MAX_S:
                    again.error.details["retry_after_s"] = int(pause_s)
                    raise again.error from None
                log.info("%s: %s Trying again in %.1f s.", endpoint.provider, again.error.message, pause_s)
            await anyio.sleep(pause_s)
    raise AssertionError("the last try returns or raises")


async def is_reachable(endpoint: Endpoint, path: str) -> bool:
    """Whether anything speaks HTTP there; what it says does not matter."""
    import httpx

    try:
        with anyio.fail_after(PROBE_S):
            async with _client(endpoint) as client, client.stream("GET", endpoint.base_url + path):
                return True
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError):
        return False


def _client(endpoint: Endpoint) -> httpx.AsyncClient:
    import httpx

    # a proxy of the environment leads out of a company's network, never to this machine itself
    local = urlsplit(endpoint.base_url).hostname in _LOOPBACK
    return httpx.AsyncClient(
        timeout=httpx.Timeout(endpoint.timeout_s, connect=min(CONNECT_S, endpoint.timeout_s)),
        headers={"accept-encoding": "identity"},
        follow_redirects=False,
        trust_env=not local,
        verify=not endpoint.base_url.startswith("http://"),  # loading certificates takes long; http has none
    )


async def _post(client: httpx.AsyncClient, endpoint: Endpoint, path: str, data: bytes) -> dict[str, Any]:
    import httpx

    headers = {"content-type": "application/json", **endpoint.headers}
    try:
        async with client.stream("POST", endpoint.base_url + path, content=data, headers=headers) as response:
            answer = await _body(response, endpoint)
            _check_status(endpoint, response.status_code, response.headers.get("retry-after"), answer)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise LlmUnavailable(
            f"{endpoint.provider} cannot be reached at {endpoint.base_url}.", reach_hint(endpoint.provider)
        ) from None
    except httpx.HTTPError as error:
        broken = f"The connection to {endpoint.provider} broke ({type(error).__name__})."
        raise _Again(LlmUnavailable(broken, "Try again, or decide by hand.")) from None
    return _object(endpoint, answer)


async def _body(response: httpx.Response, endpoint: Endpoint) -> bytes:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise strange(endpoint, "a compressed body, which was not asked for")
    parts, size = [], 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise strange(endpoint, f"more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def _check_status(endpoint: Endpoint, status: int, retry_after: str | None, answer: bytes) -> None:
    if 200 <= status < 300:
        return
    kind = _error_kind(answer)
    said = f"{endpoint.provider} answered {status}{f' ({kind})' if kind else ''}."
    if status in (429, 408) or status >= 500:
        hint = "It is busy or down: try again later, or decide by hand."
        raise _Again(LlmUnavailable(said, hint, status=status), pause_s(retry_after, wall_ms()))
    match status:
        case 401 | 403:
            hint = "It refuses the key: check ANTHROPIC_API_KEY."
        case 404:
            hint = "It does not know the model or the address: check CKS_LLM_MODEL"
            hint += (
                ", or fetch the model with `ollama pull`."
                if endpoint.provider == "Ollama"
                else " and the URL."
            )
        case _:
            hint = "Check CKS_LLM_MODEL and max_tokens, or decide by hand."
    raise LlmUnavailable(said, hint, status=status)


def pause_s(retry_after: str | None, now_ms: int) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110 §10.2.3: seconds or a date); None where it says nothing."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,3})?", text, re.ASCII):
        return float(text)
    try:
        at = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, at - now_ms / 1000)


def _error_kind(answer: bytes) -> str:
    """The provider's own word for the error, where it is one: its free text may say anything."""
    try:
        found = orjson.loads(answer)
        kind = found["error"]["type"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
    return kind if isinstance(kind, str) and re.fullmatch(r"[a-z_]{1,40}", kind) else ""


def _object(endpoint: Endpoint, answer: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise strange(endpoint, "something that is not JSON") from None
    if not isinstance(found, dict):
        raise strange(endpoint, "JSON that is not an object")
    return found


def strange(endpoint: Endpoint, what: str) -> LlmUnavailable:
    """The error for an answer no such provider would give."""
    return LlmUnavailable(
        f"{endpoint.provider} at {endpoint.base_url} answered {what}.",
        "Something else may be listening there: check CKS_OLLAMA_HOST or CKS_ANTHROPIC_BASE_URL.",
    )


def reach_hint(provider: str) -> str:
    """What to set so that a provider can be reached."""
    if provider == "Ollama":
        return "Start Ollama, or set CKS_OLLAMA_HOST to where it runs."
    return "Check the network and CKS_ANTHROPIC_BASE_URL."
