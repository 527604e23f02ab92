"""What `predict` does with a certificate, with a promise for one file, or with a routing file."""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from apportion.cli.streams import Watch, opened, say, target_of

if TYPE_CHECKING:
    from apportion.data.rows import BadRow, Row
    from apportion.serving.batch.answering import Answer
    from apportion.serving.runtime.session import Runtime

_STDIN = Path("-")


@dataclass(frozen=True)
class Asked:
    """What texts are read, by which model, and where answers go."""

    folder: Path
    texts: Path
    out: Path | None
    form: str
    is_csv: bool
    columns: Sequence[str] | None
    batch: int
    threads: int

    @property
    def name(self) -> str:
        """What messages call the texts."""
        return "stdin" if self.texts == _STDIN else self.texts.name

    @contextmanager
    def rows(
        self, runtime: Runtime, tag: str | None = None
    ) -> Iterator[tuple[Iterator[Row | BadRow], Watch]]:
        """The rows, with their tags as labels, and who shows how far it is."""
        from apportion.data.rows import read_csv, read_lines
        from apportion.data.shards import check_header

        if self.is_csv and tag and self.texts != _STDIN:
            check_header(self.texts, (tag,))
        columns = self.columns or (runtime.facts.get("task") or {}).get("text", ["text"])
        with opened(self.texts) as stream, Watch(stream, self.texts) as watch:
            if self.is_csv:
                yield read_csv(stream, self.name, columns, tag, blank=True), watch
            else:
                yield read_lines(stream), watch

    @property
    def chunk(self) -> int:
        """Rows that are taken at a time: who types wants an answer to each line."""
        from apportion.serving.runtime.prediction import CHUNK

        return 1 if self.texts == _STDIN and sys.stdin.isatty() else CHUNK

    def write(
        self, answered: Iterable[Answer | BadRow], classes: Sequence[str], watch: Watch
    ) -> None:
        """Writes answers as they come, and says how many ended at each budget."""
        from apportion.serving.batch.answering import lines_of_answers

        ended: Counter[float] = Counter()

        def counted() -> Iterator[Answer]:
            for answer in watch.good(answered):
                ended[answer.budget] += 1
                yield answer

        with target_of(self.out) as target:
            for line in lines_of_answers(counted(), classes, self.form):
                target.write(line)
                if self.chunk == 1:
                    target.flush()
            target.flush()
        watch.sum_up(self.name)
        rows = sum(ended.values())
        shares = (f"{100 * n / rows:.1f} % at {budget:g}" for budget, n in sorted(ended.items()))
        if rows:
            say(f"answered: {', '.join(shares)}")


def answer_texts(
    asked: Asked,
    *,
    certificate: Path | None,
    audit: float | None,
    promise: tuple[float, float] | None,
    seed: int | None,
    routing: Path | None,
    tag: str | None,
) -> None:
    """Answers texts in one of the three ways."""
    if sum(one is not None for one in (certificate, promise, routing)) > 1:
        raise ValueError("--certificate, --disagree-at-most and --routing exclude each other")
    if (audit is not None and certificate is None) or (tag is not None and routing is None):
        raise ValueError("--audit needs --certificate, and --tag needs --routing")
    if certificate is not None:
        _by_certificate(asked, certificate, audit)
    elif routing is not None:
        _by_routing(asked, routing, tag)
    else:
        assert promise is not None
        _by_promise(asked, *promise, secrets.randbits(32) if seed is None else seed)


def _by_certificate(asked: Asked, file: Path, audit: float | None) -> None:
    from apportion.serving.batch.answering import Audited, answer_rows, by_cascade
    from apportion.serving.guarantees.cascade import Cascade
    from apportion.serving.guarantees.certificate import Certificate
    from apportion.serving.guarantees.drift import Drift
    from apportion.serving.runtime.session import Runtime

    certificate = Certificate.load(file)
    runtime = Runtime(asked.folder, threads=asked.threads)
    cascade = Cascade.certified(runtime, certificate)
    answering, watched = by_cascade(cascade, batch=asked.batch), None
    if audit is not None:
        drift = Drift(
            disagree_at_most=certificate.disagree_at_most, delta=1.0 - certificate.confidence
        )
        watched = Audited(cascade, drift, share=audit, salt=certificate.texts, batch=asked.batch)
    with asked.rows(runtime) as (rows, watch):
        answered = answer_rows(
            watched or answering,
            rows,
            words=runtime.tokenizer,
            classes=runtime.classes,
            chunk=asked.chunk,
        )
        asked.write(answered, runtime.classes, watch)
    if watched is not None:
        say(_told(watched.drift.alarm, watched.drift.differed, watched.drift.audited))


def _told(alarm: bool, differed: int, audited: int) -> str:
    found = f"{differed:,} of {audited:,} audited rows differed from the whole model"
    if alarm:
        return f"drift: {found}, so the whole model answered the rows after that; certify anew"
    return f"no drift: {found}"


def _by_routing(asked: Asked, file: Path, tag: str | None) -> None:
    from apportion.serving.batch.routing import Router, read_routing
    from apportion.serving.runtime.session import Runtime

    routing = read_routing(file)
    tag = tag or routing.tag
    if tag is None:
        raise ValueError(f"{file} names no tag column; give it with --tag")
    if not asked.is_csv:
        raise ValueError("a routing file needs a CSV file with a column of tags")
    runtime = Runtime(asked.folder, threads=asked.threads)
    router = Router(routing, runtime, batch=asked.batch, tell=Once())
    with asked.rows(runtime, tag) as (rows, watch):
        asked.write(router.answer(rows, chunk=asked.chunk), router.classes, watch)


def _by_promise(asked: Asked, disagree_at_most: float, confidence: float, seed: int) -> None:
    from apportion.files import discard, sha256
    from apportion.serving.batch.answering import answer_rows, by_cascade
    from apportion.serving.guarantees.certifying import check_texts
    from apportion.serving.guarantees.file_certifying import certify_file, draw_rows, most_rows
    from apportion.serving.guarantees.guarantee import check_promise
    from apportion.serving.runtime.session import Runtime

    epsilon, delta = check_promise(disagree_at_most, confidence)
    if not asked.texts.is_file() or asked.out is None:
        raise ValueError(
            "a promise for one file needs that file, which is read twice, and --out, beside which "
            "the statement is written"
        )
    runtime = Runtime(asked.folder, threads=asked.threads)
    before = sha256(asked.texts)
    with asked.rows(runtime) as (rows, _):
        count, drawn = draw_rows(rows, most=most_rows(epsilon, delta), seed=seed)
    check_texts([row.text for row in drawn], runtime.classes)
    made = certify_file(
        runtime,
        drawn,
        count=count,
        disagree_at_most=disagree_at_most,
        confidence=confidence,
        seed=seed,
        batch=asked.batch,
        progress=Once(),
    )
    beside = asked.out.with_name(asked.out.name + ".statement.json")
    discard(beside)  # an old statement must not stand beside new answers
    answering = by_cascade(made.cascade, batch=asked.batch, known=made.known)
    with asked.rows(runtime) as (rows, watch):
        answered = answer_rows(
            answering, rows, words=runtime.tokenizer, classes=runtime.classes, chunk=asked.chunk
        )
        asked.write(_of_unchanged(asked.texts, before, answered), runtime.classes, watch)
    made.statement.save(beside, texts=before, answers=sha256(asked.out))
    say(f"{made.statement.says} ({beside})")


def _of_unchanged(
    texts: Path, digest: str, answered: Iterable[Answer | BadRow]
) -> Iterator[Answer | BadRow]:
    """All answers to a file; if it changed meanwhile, an error before they take their place."""
    from apportion.files import sha256

    yield from answered
    if sha256(texts) != digest:
        raise ValueError(f"{texts} changed while it was read, so nothing is certain of it")


class Once:
    """Says each message once; also what is done, however often it is told how far it is."""

    def __init__(self) -> None:
        self.told: set[str] = set()

    def __call__(self, message: str, done: int = 0, of: int = 0) -> None:
        """Says a message that was not said before."""
        if message not in self.told:
            self.told.add(message)
            say(message)
