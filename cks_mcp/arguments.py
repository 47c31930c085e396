"""Arguments of a call to a checked model, or an error that names the argument and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from cks_mcp.plain import shorten, shorten_name
from cks_runtime.model.errors import InvalidParameter

PROBLEMS_MAX = 20


class Args(BaseModel):
    """Base of a tool's arguments: no coercion of any kind, no unknown names, no infinities."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


A = TypeVar("A", bound=BaseModel)

_KINDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "mapping_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
}


def check_arguments(tool: str, model: type[A], arguments: object) -> A:
    """Raises InvalidParameter naming the first wrong argument; with several, `details.problems` lists them."""
    if not isinstance(arguments, Mapping):
        raise InvalidParameter(
            f"'arguments' must be an object, but {shorten(arguments)} was given",
            f"{_takes(tool, model)} Send them as one JSON object; leave it out when there are none.",
            argument="arguments",
        )
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        raise _invalid(tool, model, arguments, error) from None


def unknown_tool(name: object, known: list[str]) -> InvalidParameter:
    """The error for a tool that does not exist; `name` is whatever was sent."""
    if not isinstance(name, str):
        return InvalidParameter(
            f"'name' must be the name of a tool, but {shorten(name)} was given",
            "tools/list names the tools of this server",
            argument="name",
        )
    return InvalidParameter(
        f"there is no tool '{shorten_name(name)}'",
        _nearest(name, known) or "tools/list names the tools of this server",
        argument="name",
    )


def _invalid(
    tool: str, model: type[BaseModel], sent: Mapping[str, Any], error: ValidationError
) -> InvalidParameter:
    problems = [_problem(sent, item) for item in error.errors(include_url=False)[:PROBLEMS_MAX]]
    first = problems[0]
    further = {"problems": problems} if len(problems) > 1 else {}
    hint = _hint(tool, model, sent, first)
    return InvalidParameter(first["message"], hint, argument=first["argument"], **further)


def _problem(sent: Mapping[str, Any], error: ErrorDetails) -> dict[str, Any]:
    path = _path(sent, error["loc"])
    said = error["msg"].removeprefix("Value error, ")
    if not path:
        message = (
            "a name among the arguments is not valid text" if error["type"] == "string_unicode" else said
        )
        return {"argument": "arguments", "message": message, "kind": error["type"]}
    template = _KINDS.get(error["type"], "is wrong: {said}")
    says = template.format_map({**error.get("ctx", {}), "said": said})
    message = f"argument '{shorten_name(path)}' {says}"
    if error["type"] not in ("missing", "extra_forbidden"):
        message += f", but {shorten(error['input'])} was given"
    return {"argument": shorten_name(path), "message": message, "kind": error["type"]}


def _path(sent: Mapping[str, Any], location: tuple[int | str, ...]) -> str:
    """The place in what was sent; pydantic also puts names of union members into it, which nobody sent."""
    parts: list[str] = []
    here: Any = sent
    for index, part in enumerate(location):
        if isinstance(here, Mapping) and isinstance(part, str):
            if part not in here and index < len(location) - 1:
                break
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            break
        parts.append(str(part))
    return ".".join(parts)


def _hint(tool: str, model: type[BaseModel], sent: Mapping[str, Any], problem: dict[str, Any]) -> str:
    argument, kind = problem["argument"], problem["kind"]
    takes = _takes(tool, model)
    if kind == "extra_forbidden":
        near = _nearest(argument, list(_names(model)))
        return f"{near} {takes}".strip()
    if kind in ("dict_type", "list_type", "model_type") and isinstance(sent.get(argument), str):
        return "Send the JSON itself, not a string that contains it."
    return takes


def _names(model: type[BaseModel]) -> dict[str, bool]:
    """Each argument's name as callers write it, and whether it is required."""
    return {field.alias or name: field.is_required() for name, field in model.model_fields.items()}


def _takes(tool: str, model: type[BaseModel]) -> str:
    names = [name if required else name + "?" for name, required in _names(model).items()]
    return f"{tool} takes {', '.join(names)}." if names else f"{tool} takes no arguments."


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name[:80], known, n=1)
    return f"Did you mean '{near[0]}'?" if near else ""
