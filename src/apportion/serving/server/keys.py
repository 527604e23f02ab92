"""Keys: who may ask, for which tiers, and how much a second.

A file has a line per key: `sha256 name tier rate`. The hash is that of the key itself, which stands
nowhere; tier is one, several with commas, or * for all; rate is cost units a second, or - for any.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import stat
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from apportion.serving.server.terms import Config, Refusal

_BURST = 10.0  # seconds of its rate that a key may spend at once


@dataclass(frozen=True)
class Key:
    """One line of the file."""

    digest: str
    name: str
    tiers: tuple[str, ...] | None  # none: all of them
    rate: float | None


def digest_of(key: str) -> str:
    """What the file has of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path, tiers: Collection[str]) -> tuple[Key, ...]:
    """The keys in a file that nobody else can read."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the keys in {path} can't be read: {error}") from None
    if sys.platform != "win32" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"others can read or write {path}: chmod 600 {path.name}")
    found: list[Key] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(_key(line.split(), f"{path.name}, line {number}", tiers))
    if not found:
        raise ValueError(f"{path} has no keys")
    for what in ("name", "digest"):
        values = [getattr(key, what) for key in found]
        if len(set(values)) < len(values):
            raise ValueError(f"{path.name} has a {what} twice")
    return tuple(found)


def _key(parts: list[str], where: str, tiers: Collection[str]) -> Key:
    if len(parts) != 4:
        raise ValueError(f"{where}: a key is four words, sha256 name tier rate, not {len(parts)}")
    digest, name, listed, rate = parts
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(
            f"{where}: the first word is the SHA-256 of the key, 64 hexadecimal digits"
        )
    named = None if listed == "*" else tuple(listed.split(","))
    unknown = sorted(set(named or ()) - set(tiers))
    if unknown:
        raise ValueError(f"{where}: there is no tier {unknown[0]!r}; there are {', '.join(tiers)}")
    try:
        number = None if rate == "-" else float(rate)
    except ValueError:
        number = 0.0
    if number is not None and not 0.0 < number < float("inf"):
        raise ValueError(f"{where}: the rate is a number above 0 or -, not {rate!r}")
    return Key(digest, name, named, number)


def keyring_of(config: Config) -> Keyring | None:
    """The keys of a configuration; None where anybody may ask."""
    if config.keys is None:
        return None
    return Keyring(read_keys(config.keys, [tier.name for tier in config.tiers]))


class Keyring:
    """Finds keys, and counts what they spend."""

    def __init__(
        self, keys: Collection[Key], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys, self._clock = tuple(keys), clock
        self._spent = {key.name: (0.0, clock()) for key in keys}  # a debt, and as of when

    def find(self, given: str | None) -> Key:
        """The key that a request brings. Every line is compared, each in constant time."""
        if not given:
            raise Refusal("no-key", "a key is needed: Authorization: Bearer KEY")
        digest, found = digest_of(given), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            raise Refusal("unknown-key", "this key is not known")
        return found

    def check_rate(self, key: Key) -> None:
        """Refuses a key that has spent what it may."""
        if key.rate is not None and (debt := self._debt(key)) > _BURST * key.rate:
            wait = debt / key.rate - _BURST
            raise Refusal(
                "rate",
                f"key {key.name} may spend {key.rate:g} cost units a second",
                retry_after_ms=max(round(1000 * wait), 1),
            )

    def spend(self, key: Key, cost: float) -> None:
        """Notes what an answer cost: it is known only afterwards."""
        self._spent[key.name] = (self._debt(key) + cost, self._clock())

    def _debt(self, key: Key) -> float:
        # A key that is new to the file since its request came owes nothing yet.
        debt, since = self._spent.get(key.name, (0.0, self._clock()))
        return max(0.0, debt - (key.rate or 0.0) * (self._clock() - since))
