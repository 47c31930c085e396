"""Lines of the stdio transport to messages and back: pure functions, so every malformed line is a plain test.

The SDK's reader drops what it cannot parse, without an answer, and stops at a line like ten thousand brackets.
Here every line gives messages, refusals (answered with a JSON-RPC error) or drops (malformed notifications and
answers, which nobody waits for).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from pydantic import ValidationError

from cks_mcp.plain import dump_json, scrub

VALUES_MAX = 64
"""Values read from one line (several may stand side by side): beyond it the rest is refused as one."""
TOKENS_MAX = 300_000
"""Tokens looked through for the id of a line that is no JSON; covers 100,000 brackets and their commas."""

_BLANK = " \t\r\n"
# Possessive, and an unclosed string runs to the end: so a broken line costs time linear in its length.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[{}\[\]:,]|[^\s{}\[\]:,"]++', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something on the line is no valid request; `id` is the request's, or None where it cannot be read."""

    id: RequestId | None
    code: int
    message: str
    data: dict[str, Any] | None = None

    def as_message(self) -> JSONRPCError:
        """The JSON-RPC error that answers it."""
        error = ErrorData(code=self.code, message=self.message)
        if self.data is not None:
            error.data = self.data
        return JSONRPCError.model_construct(jsonrpc="2.0", id=self.id, error=error)


@dataclass(frozen=True, slots=True)
class Drop:
    """A malformed notification or answer: nothing may be sent back for it."""

    reason: str


Decoded = JSONRPCMessage | Refusal | Drop


class _Repeated(ValueError):
    """An object names one key twice, so what it means is anyone's guess."""


def decode_line(line: bytes) -> list[Decoded]:
    """Everything one line holds, in order; a blank line holds nothing. Never raises."""
    stripped = line.strip(b" \t\r\n\x0b\x0c")
    stripped = stripped.removeprefix(b"\xef\xbb\xbf")
    if not stripped:
        return []
    try:
        text = stripped.decode("utf-8")
    except UnicodeDecodeError as error:
        readable = stripped.decode("utf-8", "replace")
        return [_unreadable(readable, f"the line is not UTF-8 (byte {error.start})")]
    return _decode_text(text)


def _decode_text(text: str) -> list[Decoded]:
    found: list[Decoded] = []
    position = 0
    while position < len(text):
        if len(found) >= VALUES_MAX:
            found.append(Refusal(None, INVALID_REQUEST, "too many messages on one line"))
            break
        try:
            value, position = _read_value(text, position)
        except (ValueError, RecursionError) as error:
            found.append(_unreadable(text[position:], _why(error)))
            break
        found.extend(_classify(value))
        while position < len(text) and text[position] in _BLANK:
            position += 1
    return found


def refuse_long(prefix: bytes, bytes_max: int) -> Refusal:
    """The refusal of a line that was not read to its end; `prefix` is what was kept of it."""
    message = f"the message is longer than {bytes_max} bytes"
    data = {
        "code": "too_large",
        "message": message,
        "hint": "send less at once, or raise CKS_MAX_REQUEST_BYTES",
        "details": {"bytes_max": bytes_max},
    }
    return Refusal(_scan(prefix.decode("utf-8", "replace")).id, INVALID_REQUEST, message, data)


def encode_message(message: JSONRPCMessage) -> bytes:
    """One line, newline included. Raises TypeError or RecursionError for a result that is no JSON."""
    if isinstance(message, JSONRPCResponse):
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": message.id, "result": message.result}
    else:
        body = message.model_dump(by_alias=True, exclude_unset=True)
    if isinstance(body.get("id"), str) and not _is_text(body["id"]):
        # The id goes back exactly as it came, even where it is no valid Unicode.
        scrubbed = {key: value if key == "id" else scrub(value) for key, value in body.items()}
        return json.dumps(scrubbed, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
    return dump_json(body) + b"\n"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Repeated(f"an object has the key {json.dumps(key[:80])} twice")
            seen.add(key)
    return made


def _wide_int(digits: str) -> int | float:
    # Python refuses to read more than 4300 digits; such a number is beyond every double as well, hence infinity,
    # which every check of numbers refuses by name.
    return int(digits) if len(digits) <= 4300 else float(digits)


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)
_WIDE = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique, parse_int=_wide_int)


def _read_value(text: str, position: int) -> tuple[Any, int]:
    try:
        return _STRICT.raw_decode(text, position)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if "digits" not in str(error):
            raise
        return _WIDE.raw_decode(text, position)


def _why(error: Exception) -> str:
    match error:
        case RecursionError():
            return "the JSON is nested too deeply"
        case json.JSONDecodeError():
            return f"the line is not JSON: {error.msg} at character {error.pos}"
        case _:
            return f"the line is not valid JSON: {error}"


def _classify(value: Any) -> list[Decoded]:
    match value:
        case []:
            return [Refusal(None, INVALID_REQUEST, "a batch must not be empty")]
        case list():
            return list(_refuse_batch(value))
        case dict():
            return [_classify_object(value)]
        case _:
            return [Refusal(None, INVALID_REQUEST, "a message must be a JSON object")]


def _refuse_batch(batch: list[Any]) -> list[Refusal]:
    message = "batches are not supported: send one message a line"
    ids = [
        item["id"] for item in batch if isinstance(item, dict) and "method" in item and _is_id(item.get("id"))
    ]
    if not ids:
        return [Refusal(None, INVALID_REQUEST, message)]
    return [Refusal(one, INVALID_REQUEST, message) for one in ids[:VALUES_MAX]]


def _classify_object(value: dict[str, Any]) -> Decoded:
    if "method" not in value:
        if "result" in value or "error" in value:
            return _answer(value)
        known = value["id"] if _is_id(value.get("id")) else None
        return Refusal(known, INVALID_REQUEST, "'method' is missing")
    if "id" not in value:
        problem = _problem(value)
        if problem is not None:
            return Drop(f"malformed notification: {problem[1]}")
        return JSONRPCNotification.model_construct(jsonrpc="2.0", method=value["method"], **_params(value))
    known = value["id"]
    if not _is_id(known):
        return Refusal(None, INVALID_REQUEST, "'id' must be a string or an integer")
    problem = _problem(value)
    if problem is not None:
        return Refusal(known, *problem)
    if isinstance(known, str) and not _is_text(known):
        return Refusal(known, INVALID_REQUEST, "'id' must be valid Unicode text")
    return JSONRPCRequest.model_construct(jsonrpc="2.0", id=known, method=value["method"], **_params(value))


def _problem(value: dict[str, Any]) -> tuple[int, str] | None:
    if value.get("jsonrpc") != "2.0":
        return INVALID_REQUEST, "'jsonrpc' must be \"2.0\""
    method = value["method"]
    if not isinstance(method, str) or not _is_text(method):
        return INVALID_REQUEST, "'method' must be a string"
    if "params" in value and not isinstance(value["params"], dict):
        return INVALID_PARAMS, "'params' must be an object"
    return None


def _params(value: dict[str, Any]) -> dict[str, Any]:
    return {"params": value["params"]} if "params" in value else {}


def _answer(value: dict[str, Any]) -> Decoded:
    model = JSONRPCResponse if "result" in value else JSONRPCError
    try:
        return model.model_validate(value)
    except ValidationError:
        return Drop("malformed answer")


def _is_id(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _unreadable(text: str, reason: str) -> Refusal | Drop:
    """The refusal of something that is no JSON: its id is looked for token by token."""
    seen = _scan(text)
    if seen.notification:
        return Drop(f"malformed notification: {reason}")
    return Refusal(seen.id, PARSE_ERROR, reason)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What can be told of a broken object: its id, or that it ended with a method and without an id."""

    id: RequestId | None = None
    notification: bool = False


def _scan(text: str) -> _Seen:
    """Only keys of the outermost object count: an id inside the arguments belongs to somebody else."""
    depth = 0
    key: object = None
    expects_key = False
    keys: set[object] = set()
    for number, match in enumerate(_TOKEN.finditer(text)):
        piece = match.group()
        if number > TOKENS_MAX or (number == 0 and piece != "{"):
            break
        if piece in "{[":
            depth += 1
            expects_key = depth == 1
        elif piece in "}]":
            depth -= 1
            if depth == 0:
                return _Seen(notification="method" in keys and "id" not in keys)
        elif depth != 1:
            continue
        elif piece == ",":
            key, expects_key = None, True
        elif piece == ":":
            expects_key = False
        elif expects_key:
            key = _literal(piece)
            keys.add(key)
        elif key == "id":
            return _Seen(id=_readable_id(_literal(piece)))
    return _Seen()


def _readable_id(value: object) -> RequestId | None:
    match value:
        case bool():
            return None
        case str() if _is_text(value) and "\ufffd" not in value:
            return value
        case int():
            return value
        case _:
            return None


def _literal(piece: str) -> str | int | float | None:
    """The value of a scalar; None for what is none."""
    try:
        value = json.loads(piece, parse_constant=_refuse_constant)
    except ValueError:
        return None
    return value if isinstance(value, str | int | float) else None
