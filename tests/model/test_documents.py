"""Documents as values: paths, chains, what a write makes of a head, joining and windows of text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.model.canon import digest
from cks_runtime.model.documents import (
    BODY_BYTES_MAX,
    DocumentVersion,
    body_bytes,
    check_author,
    check_path,
    check_prefix,
    count_lines,
    joined,
    judge_append,
    judge_archive,
    judge_publish,
    line_window,
    link_error,
    next_version,
    split_version,
)
from cks_runtime.model.errors import InvalidParameter, TooLarge

ONE, TWO = digest(b"one"), digest(b"two")

GOOD_PATHS = [
    "/a",
    "/team/plan.md",
    "/équipe/план/計画 📝.md",
    "/a b/c?d#e&f=g",
    "/...",
    "/.hidden",
    "/v",
    "/version1",
    "/v1.md",
    "/v-1",
    "/V1",
    "/100%",
    "/%41",
    "/%252e",
    "/a\u2028b",
    "/" + "x" * 1023,
    "/" + "é" * 511,
]

BAD_PATHS = [
    "",
    "/",
    "a",
    "a/b",
    "//",
    "//a",
    "/a/",
    "/a//b",
    "/.",
    "/..",
    "/a/./b",
    "/a/../b",
    "/../etc/passwd",
    "../a",
    "/%2e%2e/a",
    "/%2E%2e/a",
    "/.%2e/a",
    "/a%2fb",
    "/a%2Fb",
    "/a%5cb",
    "/a%5Cb",
    "/a%00",
    "/a\\b",
    "/..\\..\\a",
    "\\a",
    "/a\x00",
    "/a\nb",
    "/a\tb",
    "/a\x7fb",
    "/a\x85b",
    "/a\x9fb",
    "/\ud800",
    "/v1",
    "/v1/a",
    "/a/v1/b",
    "/a/v0",
    "/a/v01",
    "/a/v1",
    "/a/v٣",
    "file:///etc/passwd",
    "doc:///a",
    "C:/a",
    "~/a",
    "/" + "x" * 1024,
    "/" + "é" * 512,
    "/" + "/".join(["a"] * 513),
]


@pytest.mark.parametrize("path", GOOD_PATHS, ids=ascii)
def test_paths_that_name_documents(path: str) -> None:
    assert check_path(path) == path
    assert split_version(path) == (path, None)
    assert check_prefix(path) == path


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: ascii(path)[:40])
def test_paths_that_are_refused_by_name(path: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_path(path)
    assert caught.value.details == {"argument": "path"}
    assert caught.value.message.encode().decode().isprintable()
    assert caught.value.hint


def test_a_last_segment_names_a_version() -> None:
    assert split_version("/a/b.md/v1") == ("/a/b.md", 1)
    assert split_version("/a/v12") == ("/a", 12)
    assert split_version("/" + "x" * 1023 + "/v7") == ("/" + "x" * 1023, 7)


@pytest.mark.parametrize("path", ["/v1", "/a/v0", "/a/v01", "/a/v1/v2", "/a/v٣", "/a/v1/", "a/v1", "/../v1"])
def test_what_names_no_version(path: str) -> None:
    with pytest.raises(InvalidParameter):
        split_version(path)


def test_a_version_of_any_length_is_a_number_of_64_bits() -> None:
    _, version = split_version("/a/v" + "9" * 10_000)
    assert version is not None and 10**17 < version < 2**63


def test_prefixes_are_plain_text_that_can_begin_a_path() -> None:
    for prefix in ("", "/", "/te", "/team/", "/v1", "/../", "te"):
        assert check_prefix(prefix) == prefix
    for prefix in ("/a\x00", "/%2e", "\ud800", "/a\\", "x" * 1025):
        with pytest.raises(InvalidParameter) as caught:
            check_prefix(prefix)
        assert caught.value.details == {"argument": "prefix"}


def test_bodies_are_text_of_at_most_a_mebibyte() -> None:
    assert body_bytes("é\r\n\x85\u2028\x00") == "é\r\n\x85\u2028\x00".encode()
    assert body_bytes("") == b""
    assert len(body_bytes("x" * BODY_BYTES_MAX)) == BODY_BYTES_MAX
    with pytest.raises(TooLarge):
        body_bytes("é" * (BODY_BYTES_MAX // 2) + "x")
    with pytest.raises(InvalidParameter, match="character 2"):
        body_bytes("ab\udfff")


@pytest.mark.parametrize("author", ["a\nb", "\x00", "x" * 301, "\ud800"])
def test_authors_that_are_refused(author: str) -> None:
    with pytest.raises(InvalidParameter):
        check_author(author)


def chain(*contents: bytes) -> list[DocumentVersion]:
    versions: list[DocumentVersion] = []
    for at_ms, content in enumerate(contents):
        head = versions[-1] if versions else None
        versions.append(next_version("/a", head, digest(content), "me", at_ms))
    return versions


def first_error(versions: list[DocumentVersion]) -> str | None:
    before = None
    for version in versions:
        error = link_error(before, version)
        if error is not None:
            return error
        before = version
    return None


def test_a_chain_is_sound_and_names_what_breaks_it() -> None:
    versions = chain(b"a", b"b", b"c")
    assert first_error(versions) is None
    assert first_error(versions[1:]) == "version 1 is missing"
    assert first_error([versions[0], versions[2]]) == "version 2 is missing"


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/b"},
        {"content": ONE},
        {"author": "you"},
        {"at_ms": 99},
        {"archived": True},
        {"hash": TWO},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_covered_by_the_chain(change: dict) -> None:
    versions = chain(b"a", b"b", b"c")
    versions[1] = replace(versions[1], **change)
    assert first_error(versions) == "version 2 was changed: its hash does not match its fields"


def test_a_version_that_was_rewritten_whole_breaks_the_next_link() -> None:
    versions = chain(b"a", b"b", b"c")
    versions[1] = next_version("/a", versions[0], digest(b"forged"), "me", 1)
    assert first_error(versions) == "version 3 does not name the hash of version 2"


def at(version: int, content: bytes = ONE, archived: bool = False) -> DocumentVersion:
    return DocumentVersion("/a", version, None, content, "me", 0, archived, TWO)


@pytest.mark.parametrize(
    ("head", "expected", "verdict"),
    [
        (None, 0, "make"),
        (None, 1, "missing"),
        (at(3), 3, "make"),
        (at(3), 0, "conflict"),
        (at(3), 2, "conflict"),
        (at(3), 4, "conflict"),
        (at(3, TWO), 3, "stands"),
        (at(3, TWO), 0, "stands"),
        (at(3, TWO), 1, "stands"),
        (at(3, archived=True), 3, "make"),
        (at(3, TWO, archived=True), 3, "make"),
        (at(3, archived=True), 2, "archived"),
        (at(3, archived=True), 0, "archived"),
        (at(3, TWO, archived=True), 2, "archived"),
    ],
)
def test_what_a_publish_makes_of_a_head(head: DocumentVersion | None, expected: int, verdict: str) -> None:
    assert judge_publish(head, expected, TWO) == verdict


@pytest.mark.parametrize(
    ("head", "expected", "added", "verdict"),
    [
        (None, None, b"x", "missing"),
        (None, 0, b"x", "missing"),
        (at(3), None, b"x", "make"),
        (at(3), 3, b"x", "make"),
        (at(3), 2, b"x", "conflict"),
        (at(3), 4, b"x", "conflict"),
        (at(3), None, b"", "stands"),
        (at(3, archived=True), None, b"x", "archived"),
        (at(3, archived=True), 3, b"x", "archived"),
    ],
)
def test_what_an_append_makes_of_a_head(
    head: DocumentVersion | None, expected: int | None, added: bytes, verdict: str
) -> None:
    assert judge_append(head, expected, added) == verdict


def test_archiving_and_bringing_back_are_repeated_without_effect() -> None:
    assert judge_archive(None, True) == judge_archive(None, False) == "missing"
    assert judge_archive(at(1), True) == judge_archive(at(1, archived=True), False) == "make"
    assert judge_archive(at(1), False) == judge_archive(at(1, archived=True), True) == "stands"


@pytest.mark.parametrize(
    ("text", "added", "whole"),
    [
        (b"", b"x", b"x"),
        (b"a\n", b"x", b"a\nx"),
        (b"a", b"x", b"a\nx"),
        (b"a", b"x\n", b"a\nx\n"),
        (b"a\r\nb", b"x", b"a\r\nb\r\nx"),
        (b"a\r\nb\r\n", b"x", b"a\r\nb\r\nx"),
        (b"a\r\nb\nc\nd", b"x", b"a\r\nb\nc\nd\nx"),
        (b"a\r\nb\r", b"x", b"a\r\nb\r\nx"),
        (b"a\r", b"x", b"a\r\nx"),
        ("a\u2028".encode(), b"x", "a\u2028\nx".encode()),
        ("a\x85".encode(), b"x", "a\x85\nx".encode()),
        (b"a", b"", b"a"),
        (b"a", b"\nx", b"a\n\nx"),
    ],
)
def test_appended_text_begins_on_a_new_line(text: bytes, added: bytes, whole: bytes) -> None:
    assert joined(text, added) == whole


TEXTS = st.text(st.sampled_from("ab\r\n\x85\u2028\x0b\x0c"), max_size=30)


@given(TEXTS, st.integers(1, 5))
def test_windows_side_by_side_are_the_text(text: str, size: int) -> None:
    total = count_lines(text)
    windows = [line_window(text, first, size) for first in range(1, total + 1, size)]
    assert "".join(windows) == text
    assert all(count_lines(window) == size for window in windows[:-1])
    assert line_window(text, 1, None) == text
    assert line_window(text, total + 1, size) == line_window(text, total + 100, None) == ""


@given(TEXTS, TEXTS)
def test_joining_keeps_every_line_of_both(text: str, added: str) -> None:
    whole = joined(text.encode(), added.encode()).decode()
    assert whole.startswith(text) and whole.endswith(added)
    assert count_lines(whole) == count_lines(text) + count_lines(added)
