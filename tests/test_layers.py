"""The house has floors: a room knows only what lies below it."""

from __future__ import annotations

import ast
from pathlib import Path

import apportion

ROOT = Path(apportion.__file__).parent
# From the roof down. Rooms on one floor do not know each other; a folder is one room.
FLOORS = (
    {"cli"},
    {"progress", "report"},
    {"driver", "reproduction"},
    {"experiment", "measuring"},
    {"plausibility", "production"},
    {"stages"},
    {"training", "scoring", "repairing", "baselines", "prediction"},
    {"objectives", "resume"},
    {"evaluation", "checkpoint", "schedule"},
    {"card", "restoring"},
    {"consistency"},
    {"benchmark", "asking"},
    {"backbones"},
    {"recipes", "tasks", "skipping", "views", "heads"},
    {"elastic"},
    {"surgery", "allocation", "recalling", "fusing", "compute"},
    {"sites", "gates"},
    {"state", "manifest"},
    {
        "units",
        "losses",
        "least_squares",
        "records",
        "schema",
        "goals",
        "claims",
        "shrinking",
        "autoclasses",
        "allocator",
        "lines",
        "files",
    },
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
PUBLIC = "__init__"  # the one place that exports, and knows everybody


def rooms():
    for path in sorted(ROOT.rglob("*.py")):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        yield room, path


def imported(path):
    """Every module of any package that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where arrows go"
            if node.module == "apportion":
                yield from (f"apportion.{alias.name}" for alias in node.names)
            else:
                yield str(node.module)


def test_every_room_has_a_floor():
    assert {room for room, _ in rooms()} - {PUBLIC} == set(FLOOR)


def test_arrows_go_down_only():
    upward = []
    for room, path in rooms():
        if room == PUBLIC:
            continue
        for name in imported(path):
            parts = name.split(".")
            if parts[0] != "apportion" or len(parts) == 1:
                continue
            other = parts[1]
            if other not in FLOOR:
                assert other == "__version__"
            elif other != room and FLOOR[other] <= FLOOR[room]:
                upward.append(f"{path.name} → {other}")
    assert upward == []


def test_only_two_rooms_know_the_hubs_libraries():
    for room, path in rooms():
        known = {name.split(".")[0] for name in imported(path)} & {"transformers", "datasets"}
        assert not known or room in ("tasks", "backbones"), path


def test_rooms_stay_small():
    for _, path in rooms():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 350, path


def test_the_public_names_are_these():
    assert sorted(apportion.__all__) == [
        "Allocation",
        "Checkpoint",
        "Elastic",
        "HeadMask",
        "Recipe",
        "Skipping",
        "Units",
        "allocate",
        "cut",
        "evaluate",
        "fit",
        "load",
        "measure",
        "prune_heads",
        "recipe",
        "repair",
        "save",
        "sweep",
        "training_bar",
    ]
    assert all(hasattr(apportion, name) for name in apportion.__all__)
