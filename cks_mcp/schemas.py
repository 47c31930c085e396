"""JSON schemas of tools, made small: a client puts all of them into a model's context."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_KEEP_AS_DATA = frozenset({"properties", "$defs", "default", "enum", "const", "examples"})


def input_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What a caller may send. An optional argument is one to leave out; null is not advertised for it."""
    return _object(compact(model.model_json_schema(by_alias=True, mode="validation")))


def output_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What a caller gets. Further fields may come, so objects are open, and lists of such objects just lists."""
    schema = compact(model.model_json_schema(by_alias=True, mode="validation"))
    for field in schema.get("properties", {}).values():
        if field.get("items") == {"type": "object"}:
            del field["items"]
    return _object(schema)


def _object(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", **schema}


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema without titles, null defaults, their null types, and definitions used only once."""
    definitions = schema.pop("$defs", {})
    counts: dict[str, int] = {}
    _count_refs(schema, counts)
    for definition in definitions.values():
        _count_refs(definition, counts)
    inline = {
        name: body
        for name, body in definitions.items()
        if counts.get(name) == 1 and not _mentions(body, name)
    }
    slim = _slim_object(schema, inline)
    kept = {name: _slim(body, inline) for name, body in definitions.items() if name not in inline}
    if kept:
        slim["$defs"] = kept
    return slim


def _slim(node: Any, inline: dict[str, Any]) -> Any:
    match node:
        case list():
            return [_slim(item, inline) for item in node]
        case dict():
            return _slim_object(node, inline)
        case _:
            return node


def _slim_object(node: dict[str, Any], inline: dict[str, Any]) -> dict[str, Any]:
    reference = node.get("$ref")
    if isinstance(reference, str) and (name := _ref_name(reference)) in inline:
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _slim_object({**inline[name], **rest}, inline)
    slim: dict[str, Any] = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "properties":
            slim[key] = {name: _slim(item, inline) for name, item in value.items()}
        elif key in _KEEP_AS_DATA or (key == "additionalProperties" and isinstance(value, bool)):
            slim[key] = value
        else:
            slim[key] = _slim(value, inline)
    return _without_null(_without_open(slim))


def _without_open(node: dict[str, Any]) -> dict[str, Any]:
    # Objects are open unless they say otherwise, so saying it is a waste.
    if node.get("additionalProperties") is True:
        del node["additionalProperties"]
    return node


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """`T | None = None` is advertised as plain T; a required `T | None` keeps its null as a type."""
    choices = node.get("anyOf")
    if not isinstance(choices, list) or {"type": "null"} not in choices:
        return node
    others = [choice for choice in choices if choice != {"type": "null"}]
    optional = "default" in node and node["default"] is None
    rest = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
    if len(others) > 1:
        return {**rest, "anyOf": others if optional else [*others, {"type": "null"}]}
    if optional:
        return {**others[0], **rest}
    if isinstance(others[0].get("type"), str) and "enum" not in others[0]:
        return {**others[0], **rest, "type": [others[0]["type"], "null"]}
    return node


def _count_refs(node: Any, counts: dict[str, int]) -> None:
    if isinstance(node, list):
        for item in node:
            _count_refs(item, counts)
    elif isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str):
            name = _ref_name(reference)
            counts[name] = counts.get(name, 0) + 1
        for item in node.values():
            _count_refs(item, counts)


def _mentions(node: Any, name: str) -> bool:
    counts: dict[str, int] = {}
    _count_refs(node, counts)
    return name in counts


def _ref_name(reference: str) -> str:
    return reference.removeprefix("#/$defs/")
