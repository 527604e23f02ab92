"""A promise at work: the certificate that a server answers by, its audits and its alarm.

Some answers that a small budget gave are asked of the whole model as well, when nobody waits.
All of the answers that were drawn are looked at in the order in which they were given, those of the
whole model too: which of them come first must not depend on what they say.
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion.files import first_line
from apportion.serving.guarantees.cascade import Cascade, stages_of
from apportion.serving.guarantees.certificate import Certificate
from apportion.serving.guarantees.drift import Drift, is_audited
from apportion.serving.runtime.session import Runtime
from apportion.serving.server.terms import Refusal

CERTIFICATE = "certificate.json"
_MOST = 256  # answers that wait for their audit; those that find no place are not audited
LOAD = "load"  # why an answer is not certified

Stage = tuple[float, float]  # a level, and the margin that ends a row there


@dataclass(frozen=True)
class Audit:
    """An answer that the whole model is asked about: the row's ids, the class, and who gave it."""

    ids: list[int]
    label: int
    by_whole: bool
    model: Any


class Promise:
    """A certificate and how its stream does. Whoever calls holds the queue's lock."""

    def __init__(
        self, certificate: Certificate, *, share: float = 0.02, salt: str | None = None
    ) -> None:
        self.certificate, self.share = certificate, share
        # Callers may choose the ids of their requests: the salt is what they can't know.
        self.salt = secrets.token_hex(8) if salt is None else salt
        self.drift = Drift(
            disagree_at_most=certificate.disagree_at_most, delta=1.0 - certificate.confidence
        )
        self.ends: Counter[float] = Counter()  # certified answers by the level that gave them
        self.without: Counter[str] = Counter()  # answers without the promise, by why
        self.passed_over = 0  # answers that were drawn and found no place
        self._all = stages_of(certificate.levels, certificate.thresholds)
        self._drawn: deque[Audit] = deque()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The levels that a row goes through; after an alarm, the whole model alone."""
        return self._all[-1:] if self.drift.alarm else self._all

    def draw(self, number: str, audit: Audit) -> None:
        """Keeps a certified answer for an audit, if the hash of its number says so."""
        if not is_audited(number, self.share, salt=self.salt):
            return
        if len(self._drawn) < _MOST:
            self._drawn.append(audit)
        else:
            self.passed_over += 1

    def next_audit(self) -> Audit | None:
        """The next answer that has to be asked of the whole model."""
        while self._drawn and self._drawn[0].by_whole:
            self._drawn.popleft()
            self.drift.observe(False)
        return self._drawn.popleft() if self._drawn else None

    @property
    def drawn(self) -> int:
        """Answers that wait for their audit."""
        return len(self._drawn)

    def state(self) -> dict[str, Any]:
        """What is promised and how it does, for the page and for clients."""
        drift = self.drift
        return {
            "disagree_at_most": self.certificate.disagree_at_most,
            "confidence": self.certificate.confidence,
            "levels": [level for level, _ in self.stages],
            "ends": {f"{level:g}": count for level, count in sorted(self.ends.items())},
            "not_certified": dict(self.without),
            "audited": drift.audited,
            "differed": drift.differed,
            "waiting": self.drawn,
            "wealth": round(drift.wealth, 4),
            "alarm": drift.alarm,
        }


@dataclass(frozen=True)
class Unpromised:
    """Why a model has no promise: a sentence for those who ask for one."""

    why: str

    def refusal(self) -> Refusal:
        """What a request for a certificate gets."""
        return Refusal("bad-field", self.why, path="certificate")


UNPROMISED = Unpromised("this server has no certificate to answer by")


def find_promise(
    runtime: Runtime, folder: Path, *, file: Path | None, share: float
) -> Promise | Unpromised:
    """The promise of a model: by a file that is named, or by the one in its folder.

    A named file that is not of this model is an error. One in the folder is left out with a
    sentence, as when the runtime was updated: the server can do without.
    """
    if file is not None:
        certificate = Certificate.load(file)
        Cascade.certified(runtime, certificate)
        return Promise(certificate, share=share)
    if not (folder / CERTIFICATE).is_file():
        return UNPROMISED
    try:
        certificate = Certificate.load(folder / CERTIFICATE)
        Cascade.certified(runtime, certificate)
    except ValueError as error:
        # Its path is the operator's business.
        said = first_line(error).replace(str(folder / CERTIFICATE), CERTIFICATE)
        return Unpromised(f"{UNPROMISED.why}: {said}")
    return Promise(certificate, share=share)


def kept_promise(old: Promise | Unpromised, new: Promise | Unpromised) -> Promise | Unpromised:
    """The promise after a swap: one of the same certificate keeps its audits and its alarm."""
    if not (isinstance(old, Promise) and isinstance(new, Promise)):
        return new
    if old.certificate != new.certificate:
        return new
    old.share = new.share
    return old
