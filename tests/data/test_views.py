"""Views of texts: what a teacher and a student read in place of a text as it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pretrained import tokenizer

from apportion.data.task import Split
from apportion.data.tokenizer import Tokenizer
from apportion.data.views import (
    AS_IT_IS,
    MIXED,
    REPLACED,
    SHARES,
    SPAN,
    UNKNOWN,
    _kinds,
    _random,
    nearest_tokens,
    views,
)

LENGTH = 16
MARKED = Tokenizer.of(tokenizer(), LENGTH)  # [CLS] … [SEP]
BARE = Tokenizer.learn(["a b c"], LENGTH, size=9, min_count=1)
CLS, SEP = MARKED.marks
FIRST = 5  # the ids below it are special


def split_of(bodies: list[list[int]], words: Tokenizer = MARKED) -> Split:
    rows = [[CLS, *body, SEP] if words.marks else body for body in bodies]
    return Split(words.pad(rows, LENGTH), torch.full((len(rows),), -1))


def numbered(count: int, size: int = LENGTH - 2) -> Split:
    """Rows in which no two tokens are the same: it shows where each came from."""
    return split_of([[100 + LENGTH * row + n for n in range(size)] for row in range(count)])


def kinds(seed: int, number: int, rows: torch.Tensor) -> torch.Tensor:
    return _kinds(_random(seed, number, rows, 0))


def bodies_of(inputs: dict[str, torch.Tensor]) -> list[list[int]]:
    """The words of each view; complains if a mark or the padding is out of its place."""
    bodies = []
    for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
        count = int(mask.sum())
        assert mask[:count].all() and (ids[count:] == MARKED.padding).all()
        assert (int(ids[0]), int(ids[count - 1])) == (CLS, SEP)
        bodies.append(ids[1 : count - 1].tolist())
    return bodies


texts = st.lists(
    st.lists(st.integers(FIRST, 30), min_size=1, max_size=LENGTH - 2), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(texts, st.integers(0, 2**31), st.integers(0, 50), st.booleans(), st.booleans())
def test_every_view_is_a_row_that_a_model_can_read(bodies, seed, number, marked, replaced):
    words = MARKED if marked else BARE
    split = split_of(bodies, words)
    table = torch.full((40, 3), 39) if replaced else None
    rows = torch.arange(len(split))
    seen = views(split, rows, words=words, seed=seed, number=number, neighbours=table)
    ids, mask = seen["input_ids"], seen["attention_mask"]
    assert ids.dtype == split.inputs["input_ids"].dtype
    assert mask.dtype == split.inputs["attention_mask"].dtype
    assert ids.shape == mask.shape and ids.shape[1] <= LENGTH and mask.any(dim=0).all()
    shown = bodies_of(seen) if marked else [i[m].tolist() for i, m in zip(ids, mask, strict=True)]
    for body, kind, before in zip(shown, kinds(seed, number, rows).tolist(), bodies, strict=True):
        assert body, "a view shows at least one word"
        if kind == AS_IT_IS or (kind == REPLACED and not replaced):
            assert body == before
        elif kind != MIXED:
            assert len(before) / 2 <= len(body) <= len(before)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 99), st.integers(0, 99), st.permutations(range(12)), st.integers(1, 12))
def test_a_view_is_the_same_in_any_batch(seed, number, order, count):
    split = numbered(12)
    whole = bodies_of(views(split, torch.arange(12), words=MARKED, seed=seed, number=number))
    some = torch.tensor(order[:count])
    again = bodies_of(views(split, some, words=MARKED, seed=seed, number=number))
    assert again == [whole[row] for row in some.tolist()]


def test_seed_row_and_number_each_give_another_view():
    rows = torch.arange(50)
    one = _random(1, 0, rows, LENGTH)
    assert len({tuple(numbers) for numbers in one.tolist()}) == 50
    for other in (_random(2, 0, rows, LENGTH), _random(1, 1, rows, LENGTH)):
        assert not (one == other).any()


def test_kinds_have_their_shares():
    counts = kinds(3, 1, torch.arange(20_000)).bincount(minlength=5) / 20_000
    assert counts.tolist() == pytest.approx(SHARES, abs=0.01)
    assert sum(SHARES) == pytest.approx(1)


def test_a_span_is_a_run_of_words_from_anywhere_and_of_any_size_from_a_half_up():
    split = numbered(400)
    rows = torch.arange(400)
    shown = bodies_of(views(split, rows, words=MARKED, seed=1, number=0))
    sizes, starts = set(), set()
    for row in rows[kinds(1, 0, rows) == SPAN].tolist():
        start = shown[row][0] - (100 + LENGTH * row)
        assert shown[row] == list(range(shown[row][0], shown[row][0] + len(shown[row])))
        assert start in range(LENGTH - 2 - len(shown[row]) + 1)
        sizes.add(len(shown[row]))
        starts.add(start)
    assert {8, 14} <= sizes <= set(range(7, 15)) and {0, 3, 6} <= starts


def test_a_mixed_view_is_the_first_half_of_one_text_and_the_second_of_another():
    split = numbered(400, size=13)
    rows = torch.arange(400)
    shown = bodies_of(views(split, rows, words=MARKED, seed=1, number=0))
    partners = set()
    for row in rows[kinds(1, 0, rows) == MIXED].tolist():
        own = 100 + LENGTH * row
        assert shown[row][:7] == list(range(own, own + 7))
        partner, at = divmod(shown[row][7] - 100, LENGTH)
        assert partner != row and at == 7
        assert shown[row][7:] == list(range(shown[row][7], shown[row][7] + 6))
        partners.add(partner)
    assert len(partners) > 50  # not one for all


def test_a_fifth_of_the_words_is_unknown_in_views_of_that_kind_alone():
    split = numbered(3000)
    rows = torch.arange(3000)
    of_kind = kinds(1, 0, rows)
    shown = views(split, rows, words=MARKED, seed=1, number=0)["input_ids"] == MARKED.unknown
    assert not shown[of_kind != UNKNOWN].any()
    assert float(shown[of_kind == UNKNOWN][:, 1:-1].float().mean()) == pytest.approx(0.2, abs=0.02)


def test_replaced_words_are_neighbours_of_those_that_stood_there():
    split = split_of([[FIRST + (row + n) % 30 for n in range(14)] for row in range(3000)])
    rows = torch.arange(3000)
    table = 1000 + 10 * torch.arange(40)[:, None] + torch.arange(10)
    seen = views(split, rows, words=MARKED, seed=1, number=0, neighbours=table)["input_ids"]
    of_kind = kinds(1, 0, rows)
    assert not (seen[of_kind != REPLACED] >= 1000).any()
    before = split.inputs["input_ids"][of_kind == REPLACED]
    after = seen[of_kind == REPLACED]
    changed = after != before
    assert float(changed[:, 1:-1].float().mean()) == pytest.approx(0.15, abs=0.02)
    assert torch.equal((after[changed] - 1000) // 10, before[changed])
    assert len(((after[changed] - 1000) % 10).unique()) == 10  # any of the ten


def test_marks_and_unknown_words_inside_a_text_have_no_neighbours():
    split = split_of([[SEP, MARKED.unknown, CLS, MARKED.unknown, SEP] for _ in range(200)])
    table = torch.full((40, 10), 39)
    rows = torch.arange(200)
    seen = views(split, rows, words=MARKED, seed=1, number=0, neighbours=table)["input_ids"]
    assert not (seen == 39).any()


@pytest.mark.parametrize("bodies", [[[7]], [[7], [8]], [[], [7]], [[], []]])
def test_the_shortest_texts_survive(bodies):
    split = split_of(bodies)
    rows = torch.arange(len(bodies))
    for number in range(40):
        shown = bodies_of(views(split, rows, words=MARKED, seed=2, number=number))
        assert [len(body) for body in shown] == [len(body) for body in bodies]


def test_a_full_text_mixed_with_a_full_text_is_full():
    split = numbered(60)
    rows = torch.arange(60)
    mixed = kinds(1, 0, rows) == MIXED
    seen = views(split, rows, words=MARKED, seed=1, number=0)["attention_mask"]
    assert mixed.any() and (seen[mixed].sum(dim=1) == LENGTH).all()


def test_rows_that_are_padded_on_the_left_are_refused():
    mask = torch.tensor([[False, True, True]])
    split = Split({"input_ids": torch.tensor([[0, 5, 6]]), "attention_mask": mask}, torch.zeros(1))
    with pytest.raises(ValueError, match="padded on the right"):
        views(split, torch.arange(1), words=BARE, seed=1, number=0)


def test_the_nearest_tokens_are_those_of_the_largest_cosine():
    embeddings = torch.randn(1500, 8, generator=torch.Generator().manual_seed(1))
    among = torch.tensor([n for n in range(1500) if n not in (0, 1, 7)])
    table = nearest_tokens(embeddings, among, 10)
    assert table.shape == (1500, 10)
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    for token in (5, 1023, 1026, 1027, 1499):  # on both sides of a chunk's end
        cosine = unit @ unit[token]
        cosine[[0, 1, 7, token]] = -2
        assert set(table[token].tolist()) == set(cosine.argsort(descending=True)[:10].tolist())
    assert table[7].tolist() == [7] * 10, "what is not among them stands for itself"
    assert nearest_tokens(embeddings[:6], torch.tensor([2, 3, 4, 5]), 10).shape == (6, 3)
    assert nearest_tokens(embeddings[:3], torch.tensor([2])).tolist() == [[0], [1], [2]]
