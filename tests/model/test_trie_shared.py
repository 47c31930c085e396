"""What two tries have alike, and that a graph is not loaded by way of one that has little of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from trie_building import value as hash_of

from cks_runtime.model.trie import EMPTY_TRIE, shared

entries = st.dictionaries(st.integers(0, 300).map(str), st.integers(0, 1), max_size=200)


@settings(max_examples=60, deadline=None)
@given(entries, entries)
def test_shared_counts_what_is_alike_but_for_leaves_at_other_depths(
    one: dict[str, int], two: dict[str, int]
) -> None:
    a, b = ({id: hash_of(str(value)) for id, value in side.items()} for side in (one, two))
    alike = len(a.items() & b.items())
    found = shared(EMPTY_TRIE.update(a), EMPTY_TRIE.update(b))
    assert found <= alike
    assert shared(EMPTY_TRIE.update(a), EMPTY_TRIE.update(a)) == len(a)
    if max(len(a), len(b)) <= 32:
        assert found == alike
