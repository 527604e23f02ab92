"""Keys: a file of hashes that nobody else can read."""

from __future__ import annotations

import pytest

from apportion.serving.server.keys import Key, Keyring, digest_of, read_keys
from apportion.serving.server.terms import Refusal

TIERS = ("low", "high")


def written(tmp_path, text, mode=0o600):
    path = tmp_path / "keys.txt"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_line_is_a_hash_a_name_tiers_and_a_rate(tmp_path):
    text = f"# ours\n{digest_of('a')} ann low,high 50\n\n{digest_of('b')} bob * -\n"
    assert read_keys(written(tmp_path, text), TIERS) == (
        Key(digest_of("a"), "ann", ("low", "high"), 50.0),
        Key(digest_of("b"), "bob", None, None),
    )


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o660])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path, mode):
    with pytest.raises(ValueError, match=r"others can read or write .*: chmod 600 keys.txt"):
        read_keys(written(tmp_path, f"{digest_of('a')} ann low -\n", mode), TIERS)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "has no keys"),
        ("abc ann low -", r"line 1: the first word is the SHA-256 of the key"),
        (f"{digest_of('a')} ann low", "a key is four words, sha256 name tier rate, not 3"),
        (f"{digest_of('a')} ann gold -", "there is no tier 'gold'; there are low, high"),
        (f"{digest_of('a')} ann low fast", "the rate is a number above 0 or -, not 'fast'"),
        (f"{digest_of('a')} ann low -3", "the rate is a number above 0"),
        (f"{digest_of('a')} ann low nan", "the rate is a number above 0"),
        (f"{digest_of('a')} ann low -\n{digest_of('b')} ann low -", "has a name twice"),
        (f"{digest_of('a')} ann low -\n{digest_of('a')} bob low -", "has a digest twice"),
    ],
)
def test_a_bad_line_is_one_sentence(tmp_path, line, says):
    with pytest.raises(ValueError, match=says):
        read_keys(written(tmp_path, line), TIERS)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none can't be read"):
        read_keys(tmp_path / "none", TIERS)


def test_a_key_is_found_by_its_hash_and_every_line_is_compared(monkeypatch):
    compared = []

    def compare(one, other):
        compared.append(one)
        return one == other

    monkeypatch.setattr("apportion.serving.server.keys.hmac.compare_digest", compare)
    keys = [Key(digest_of(name), name, None, None) for name in "abc"]
    assert Keyring(keys).find("a").name == "a"
    assert compared == [key.digest for key in keys]


@pytest.mark.parametrize("given", [None, "", "z", "é", digest_of("a")])
def test_what_is_no_key_is_refused(given):
    with pytest.raises(Refusal) as caught:
        Keyring([Key(digest_of("a"), "a", None, None)]).find(given)
    assert caught.value.kind == ("unknown-key" if given else "no-key")


def test_a_rate_is_a_bucket_that_fills_again():
    now = [0.0]
    key = Key(digest_of("a"), "a", None, 2.0)
    ring = Keyring([key], clock=lambda: now[0])
    ring.spend(key, 26.0)
    with pytest.raises(Refusal, match="may spend 2 cost units a second") as caught:
        ring.check_rate(key)
    assert caught.value.extras["retry_after_ms"] == 3000
    now[0] = 3.0
    ring.check_rate(key)


def test_a_key_that_is_gone_from_the_file_may_still_be_charged_for_what_it_had_asked():
    gone = Key(digest_of("a"), "a", None, 2.0)
    ring = Keyring([Key(digest_of("b"), "b", None, None)], clock=lambda: 0.0)
    ring.spend(gone, 5.0)
    with pytest.raises(Refusal):
        ring.find("a")
