"""Documents longer than the model: windows, pooled answers, and reading on until sure."""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np
import pytest
from commands import run
from small_export import write_export
from texts import rows
from tokenizers import Tokenizer as Backend

from apportion.serving.batch.windows import (
    Reading,
    certify_reading,
    levels_of_windows,
    read_documents,
    read_within,
)
from apportion.serving.runtime.session import Runtime

WORDS = [word for _, text in rows(80, 4) for word in text.split()]


def document(number, length):
    start = number * 7
    return " ".join(WORDS[(start + n * (number % 5 + 1)) % len(WORDS)] for n in range(length))


DOCUMENTS = [document(n, 20 + 13 * (n % 9)) for n in range(120)]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    return Runtime(write_export(tmp_path_factory.mktemp("windows")))


def windows(runtime, texts, longest=128, overlap=4):
    return runtime.tokenizer.windows(texts, longest=longest, overlap=overlap)


def test_windows_hold_every_token_and_share_some(runtime):
    words = runtime.tokenizer
    (found,) = windows(runtime, [DOCUMENTS[5]], longest=4096)
    first, last = words.marks
    assert len(found) > 2
    assert all(part[0] == first and part[-1] == last for part in found)
    assert all(len(part) <= words.length for part in found)
    joined = found[0][1:-1]
    for part in found[1:]:
        assert joined[-4:] == part[1:5]
        joined += part[5:-1]
    whole = Backend.from_str(words.to_json())
    whole.no_truncation()
    assert joined == whole.encode(DOCUMENTS[5]).ids[1:-1]
    (short,) = windows(runtime, ["a"], longest=4096)
    assert short == words.encode(["a"])


def test_a_length_decides_how_many_windows_are_read(runtime):
    long = [document(3, 400)]
    counts = [len(windows(runtime, long, longest=n)[0]) for n in (8, 32, 33, 128, 4096)]
    assert counts[:3] == [1, 1, 2]
    assert counts == sorted(counts) and counts[3] == 1 + -(-(128 - 32) // (32 - 4 - 2))


@pytest.mark.parametrize("longest", [3, 8, 31, 32, 33, 40, 58, 59, 100, 128])
def test_no_more_tokens_are_read_than_a_length_says(runtime, longest):
    words = runtime.tokenizer
    first, last = words.marks
    found, whole = (windows(runtime, [document(3, 400)], longest=n)[0] for n in (longest, 4096))
    assert all(part[0] == first and part[-1] == last for part in found)
    assert found[:-1] == whole[: len(found) - 1]
    assert found[-1][:-1] == whole[len(found) - 1][: len(found[-1]) - 1]
    shared = (len(found) - 1) * (4 + 2)  # with the window before, and marks of its own
    assert sum(map(len, found)) - shared == longest
    assert windows(runtime, ["a"], longest=3) == [words.encode(["a"])]


@pytest.mark.parametrize("longest", [-1, 0, 2])
def test_a_length_without_room_for_a_token_is_refused(runtime, longest, tmp_path, capsys):
    with pytest.raises(ValueError, match=f"a length of 3 at least, marks included, not {longest}"):
        windows(runtime, ["a"], longest=longest)
    out = tmp_path / "labels.csv"
    given = (str(runtime.folder), "--length", str(longest), "--out", str(out))
    code, _, said = run(capsys, "predict", *given)
    assert code == 2 and "a length of 3 at least" in said
    assert not out.exists()


def test_documents_of_one_window_have_no_reading_to_certify(runtime):
    short = [document(n, 12) for n in range(120)]
    with pytest.raises(ValueError, match="no document has more than one window of 32 tokens"):
        certify_reading(runtime, short, longest=128, disagree_at_most=0.2, confidence=0.8)


@pytest.mark.parametrize("overlap", [-1, 30, 31])
def test_windows_that_would_not_move_on_are_refused(runtime, overlap):
    with pytest.raises(ValueError, match="windows of 32 tokens overlap in"):
        windows(runtime, ["a"], overlap=overlap)


def test_a_text_of_one_window_gets_the_answer_that_it_always_got(runtime):
    short = [document(n, 12) for n in range(6)]
    likely, read = read_documents(runtime, runtime.tokenizer, windows(runtime, short))
    wanted = [probability for _, probability in runtime.predict(short)]
    np.testing.assert_allclose(likely.max(axis=-1), wanted, atol=1e-6)
    assert set(read) == {1}


def test_answers_are_pooled_by_tokens(runtime):
    documents = windows(runtime, DOCUMENTS[:9])
    likely, read = read_documents(runtime, runtime.tokenizer, documents)
    assert list(read) == [len(one) for one in documents]
    alone, _ = read_documents(runtime, runtime.tokenizer, [[part] for part in documents[4]])
    tokens = np.array([len(part) for part in documents[4]], float)
    np.testing.assert_allclose(likely[4], tokens @ alone / tokens.sum(), atol=1e-6)


def test_reading_ends_when_the_answer_is_sure(runtime):
    documents = windows(runtime, DOCUMENTS)
    every, all_read = read_documents(runtime, runtime.tokenizer, documents)
    _, none = read_documents(runtime, runtime.tokenizer, documents, threshold=0.0)
    assert set(none) == {1}
    _, some = read_documents(runtime, runtime.tokenizer, documents, threshold=0.2)
    assert none.sum() <= some.sum() <= all_read.sum()
    again, never = read_documents(runtime, runtime.tokenizer, documents, threshold=1.1)
    assert list(never) == list(all_read)
    np.testing.assert_allclose(again, every)


@pytest.mark.parametrize(
    ("paid", "levels"),
    [
        (0.25, [0.25]),
        (0.4, [0.25]),
        (0.99, [0.5]),
        (1.0, [1.0]),
        (1.2, [1.0]),
        (0.3 / 0.12, [1.0, 1.0, 0.5]),
        (3.0, [1.0, 1.0, 1.0]),
    ],
)
def test_a_budget_pays_for_whole_windows_first(runtime, paid, levels):
    assert list(levels_of_windows(runtime, paid)) == levels


def test_a_budget_decides_how_many_windows_are_read(runtime):
    documents = windows(runtime, [document(n, 400) for n in range(3)] + DOCUMENTS[:9])
    count = np.array(list(map(len, documents)))
    every, _ = read_documents(runtime, runtime.tokenizer, documents)
    before = np.zeros(len(documents))
    for budget in (0.25, 0.5, 0.75, 1.0):
        likely, read = read_within(runtime, documents, budget=budget)
        assert (read <= np.ceil(budget * count)).all() and (read >= before).all()
        assert (read >= np.floor(budget * count)).all()
        before = read
    assert list(read) == list(count)
    np.testing.assert_allclose(likely, every)


def test_windows_of_several_levels_are_pooled_by_tokens(runtime):
    (parts,) = documents = windows(runtime, [document(3, 50)])
    assert len(parts) == 2
    likely, read = read_within(runtime, documents, budget=0.75)
    alone = [
        read_documents(partial(runtime, budget=level), runtime.tokenizer, [[part]])[0][0]
        for level, part in zip((1.0, 0.5), parts, strict=True)
    ]
    np.testing.assert_allclose(likely[0], np.average(alone, axis=0, weights=list(map(len, parts))))
    assert list(read) == [2]


def test_a_budget_below_the_lowest_level_is_refused(runtime):
    with pytest.raises(ValueError, match="below the lowest level"):
        read_within(runtime, windows(runtime, [document(3, 400)]), budget=0.1)


@pytest.mark.parametrize("budget", [0.25, 0.5])
def test_a_budget_of_a_short_text_is_the_level_of_its_one_window(runtime, budget):
    short = windows(runtime, [document(n, 12) for n in range(6)])
    likely, _ = read_within(runtime, short, budget=budget)
    level = partial(runtime, budget=runtime.level_of(budget))
    wanted, _ = read_documents(level, runtime.tokenizer, short)
    np.testing.assert_allclose(likely, wanted)


def test_a_certificate_of_reading_holds_on_its_own_rows_and_is_read_again(runtime, tmp_path):
    made = certify_reading(
        runtime, DOCUMENTS, longest=128, overlap=4, disagree_at_most=0.2, confidence=0.8
    )
    assert made.bound <= 0.2 and made.rows == 80 and made.tuned_rows == 40
    assert made.windows_read <= made.windows
    made.save(tmp_path / "reading.json")
    assert Reading.load(tmp_path / "reading.json") == made
    values = json.loads((tmp_path / "reading.json").read_text())
    values["threshold"] = 0.0
    (tmp_path / "reading.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="was edited or is damaged"):
        Reading.load(tmp_path / "reading.json")
    with pytest.raises(ValueError, match="other weights"):
        made.check({**runtime.identity, "weights": "other"})


def test_too_few_documents_certify_nothing(runtime):
    with pytest.raises(ValueError, match="different documents can't certify"):
        certify_reading(runtime, DOCUMENTS[:20], longest=128)


def test_the_commands_read_long_texts_and_say_how(runtime, tmp_path, capsys):
    file = tmp_path / "documents.txt"
    file.write_text("\n".join(DOCUMENTS) + "\n")
    folder, out = str(runtime.folder), str(tmp_path / "reading.json")
    code, found, said = run(capsys, "predict", folder, str(file), "--length", "128")
    assert code == 0 and len(found.splitlines()) == 1 + len(DOCUMENTS)
    assert "the model reads 32 tokens: texts of up to 128 are read in windows" in said
    code, found, said = run(
        capsys, "predict", folder, str(file), "--length", "128", "-b", "0.5", "--format", "jsonl"
    )
    assert code == 0 and len(found.splitlines()) == len(DOCUMENTS)
    assert "as many as 0.5 of the cost of all pays for" in said
    read, every = (
        int(number.replace(",", ""))
        for number in re.search(r"windows: ([\d,]+) of ([\d,]+) were read", said).groups()
    )
    assert read < 0.75 * every
    promise = ("--disagree-at-most", "0.2", "--confidence", "0.8", "--length", "128")
    code, found, _ = run(
        capsys, "certify", folder, "--texts", str(file), *promise, "--out", out, "--json"
    )
    assert code == 0 and json.loads(found)["format"] == "apportion-reading"
    code, found, said = run(capsys, "predict", folder, str(file), "--until-sure", out)
    assert code == 0 and "were read" in said and len(found.splitlines()) == 1 + len(DOCUMENTS)
    code, _, said = run(capsys, "predict", folder, str(file), "--overlap", "3")
    assert code == 2 and "--length" in said
    code, _, said = run(capsys, "predict", folder, str(file), "--length", "64", "--within-ms", "5")
    assert code == 2 and "leave --within-ms out" in said
