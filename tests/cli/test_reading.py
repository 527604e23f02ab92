"""`inspect --text`: people see which words are read."""

from __future__ import annotations

import json

import pytest
from commands import run
from nested_texts import nested_checkpoint
from shortened import frontier

from apportion.elastic.checkpoint import save
from apportion.elastic.description import trace_tokens

TEXT = " ".join(str(n % 10) for n in range(20))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    home = tmp_path_factory.mktemp("reading")
    checkpoint = nested_checkpoint(home)
    checkpoint.model.shortened(frontier(checkpoint.model.units.layers))
    save(checkpoint, home / "made")
    save(checkpoint.cut(0.25), home / "cut")
    return checkpoint, home


def test_every_layer_reads_as_many_words_as_its_schedule_says(made):
    checkpoint, _ = made
    tokens = trace_tokens(checkpoint, TEXT, budget=0.25)
    counts = checkpoint.model.frontier.schedules[0].tokens(len(tokens))
    for layer, count in enumerate(counts):
        assert sum(token["layers"] > layer for token in tokens) == count
    assert tokens[0] == {"token": "[CLS]", "layers": 2}
    whole = trace_tokens(checkpoint, TEXT, budget=1.0)
    assert {token["layers"] for token in whole} == {2}


def test_the_terminal_shows_the_words_and_what_is_dropped(made, capsys):
    checkpoint, home = made
    code, out, _ = run(capsys, "inspect", str(home / "made"), "-b", "0.25", "--text", TEXT)
    assert code == 0
    total = len(trace_tokens(checkpoint, TEXT, budget=0.25))
    last = checkpoint.model.frontier.schedules[0].tokens(total)[-1]
    assert f"budget 0.25, layer 1 reads {last} of {total} tokens" in out
    assert "[CLS]" in out and "·" in out
    code, out, _ = run(capsys, "inspect", str(home / "cut"), "--text", TEXT, "--json")
    assert json.loads(out)[0]["tokens"] == trace_tokens(checkpoint, TEXT, budget=0.25)


def test_the_table_says_which_share_of_the_tokens_a_layer_reads(made, capsys):
    _, home = made
    _, out, _ = run(capsys, "inspect", str(home / "made"), "-b", "0.25")
    assert "58% of the tokens" in out
    _, out, _ = run(capsys, "inspect", str(home / "made"), "-b", "1")
    assert "of the tokens" not in out


def test_an_empty_text_is_refused(made, capsys):
    _, home = made
    code, _, err = run(capsys, "inspect", str(home / "made"), "--text", "  ")
    assert code == 2 and "the text is empty" in err
