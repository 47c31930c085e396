"""What a question to a language model is, and what a provider of one must offer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from cks_runtime.model.canon import Json

T = TypeVar("T")
MAX_TOKENS_MAX = 200_000
MAX_TOKENS_DEFAULT = 2_000


class NotAnAnswer(ValueError):
    """The model's answer is not one of those that were offered; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A closed question: `user` holds the data, `schema` the form of the answer.

    `check` turns the parsed answer into a decision and raises NotAnAnswer for whatever was not offered; it is
    what counts, the schema only helps the model.
    """

    system: str
    user: str
    schema: dict[str, Any]
    check: Callable[[Json], T]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the exchange."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """What goes to a provider. `max_tokens` bounds the answer."""

    system: str
    turns: tuple[Turn, ...]
    schema: dict[str, Any]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: JSON text, unchecked. `cut`: the model stopped at `max_tokens`."""

    text: str
    model: str
    cut: bool = False


class Provider(Protocol):
    """A language model that answers in JSON."""

    name: str
    model: str

    async def reply(self, request: Request) -> Reply:
        """One exchange. Raises LlmUnavailable; cancelling it ends the request at once."""
        ...
