"""What an extra of the project brings, by the metadata of what is installed here."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOME = Path(__file__).parents[2]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@cache
def closure(*extras: str) -> dict[str, Distribution]:
    """Every distribution that the project with these extras installs, by its name; not itself."""
    asked = [Requirement(f"apportion[{','.join(extras)}]")]
    found: dict[str, Distribution] = {}
    done: set[tuple[str, str]] = set()
    while asked:
        requirement = asked.pop()
        name = _normal(requirement.name)
        wanted = ["", *sorted(requirement.extras)]
        for extra in wanted:
            if (name, extra) in done:
                continue
            done.add((name, extra))
            if name == "apportion":
                lines = [Requirement(text) for text in _own(extra)]
                asked += [one for one in lines if _applies(one, extra)]
                continue
            found[name] = distribution(requirement.name)
            lines = [Requirement(text) for text in found[name].requires or []]
            asked += [one for one in lines if _applies(one, extra)]
    return found


def _own(extra: str) -> list[str]:
    return list(PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"])


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
