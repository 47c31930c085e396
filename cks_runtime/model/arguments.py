"""The arguments of one operation, read so that every refusal names the operation and the argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.errors import InvalidParameter

_REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Arguments:
    """Operation number `index` of a list: its name, the arguments that stand beside it, and what it `takes`."""

    index: int
    op: str
    given: Mapping[str, object]
    takes: str

    @classmethod
    def of(
        cls, operation: object, index: int, known: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    ) -> Arguments:
        """The operation, known by name and with exactly the arguments it takes. Raises InvalidParameter."""
        where = f"operations[{index}]"
        if not isinstance(operation, Mapping):
            raise _refusal(where, index, f"must be an object, is {quoted(operation)}", 'Give it an "op".')
        op = operation.get("op")
        if not isinstance(op, str) or op not in known:
            problem = (
                f"must be the name of an operation, is {quoted(op)}" if "op" in operation else "is missing"
            )
            raise _refusal(f"{where}.op", index, problem, f"Operations: {', '.join(known)}.")
        required, optional = known[op]
        takes = f"{op} takes {', '.join((*required, *(f'{name}?' for name in optional)))}."
        for key in operation:
            if key != "op" and key not in required and key not in optional:
                raise _refusal(where, index, f"{op} has no argument {quoted(key)}", takes)
        for name in required:
            if name not in operation:
                raise _refusal(f"{where}.{name}", index, f"is missing; {op} requires it", takes)
        return cls(index, op, operation, takes)

    @property
    def where(self) -> str:
        """The place of the operation in the list, as messages name it."""
        return f"operations[{self.index}]"

    def wrong(self, argument: str, problem: str, hint: str = "") -> InvalidParameter:
        """The refusal of one argument; without a hint of its own it says what the operation takes."""
        return _refusal(f"{self.where}.{argument}", self.index, problem, hint or self.takes)

    def value(self, name: str, default: object = _REQUIRED) -> object:
        """The argument as it was given."""
        return self.given[name] if default is _REQUIRED else self.given.get(name, default)

    def text(self, name: str, default: object = _REQUIRED, empty: bool = False) -> str:
        """A text, non-empty unless `empty`."""
        value = self.value(name, default)
        if isinstance(value, str) and (value or empty):
            return value
        raise self.wrong(name, f"must be a {'' if empty else 'non-empty '}string, is {quoted(value)}")

    def texts(self, name: str, default: object = _REQUIRED) -> list[str]:
        """A list of texts."""
        value = self.value(name, default)
        if not isinstance(value, list | tuple):
            raise self.wrong(name, f"must be a list of strings, is {quoted(value)}")
        for place, item in enumerate(value):
            if not isinstance(item, str):
                raise self.wrong(f"{name}[{place}]", f"must be a string, is {quoted(item)}")
        return list(value)

    def mapping(self, name: str, default: object = _REQUIRED) -> Mapping[str, object]:
        """A JSON object."""
        value = self.value(name, default)
        if isinstance(value, Mapping):
            return value
        raise self.wrong(name, f"must be an object, is {quoted(value)}")

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """One of the allowed words; the first is the default."""
        value = self.value(name, allowed[0])
        if isinstance(value, str) and value in allowed:
            return value
        raise self.wrong(name, f"must be one of {', '.join(allowed)}, is {quoted(value)}")


def _refusal(place: str, index: int, problem: str, hint: str) -> InvalidParameter:
    return InvalidParameter(f"{place}: {problem}", hint, argument=place, operation=index)
