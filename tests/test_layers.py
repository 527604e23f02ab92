"""The house has floors: a room knows only what lies below it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import apportion

ROOT = Path(apportion.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
PUBLIC = "__init__"  # the one place that exports, and knows everybody


def floors() -> list[set[str]]:
    """From the roof down, as docs/architecture.md shows them."""
    rooms = PAGE.read_text(encoding="utf-8").split("## The rooms")[1]
    drawn = re.search(r"```\n(.*?)```", rooms, re.DOTALL)
    assert drawn
    return [set(re.findall(r"\w+", line)) for line in drawn[1].splitlines()]


FLOOR = {room: number for number, rooms in enumerate(floors()) for room in rooms}


def modules():
    """Each module's room, dotted name and path."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield parts[0], ".".join(parts).removesuffix(".__init__"), path


def imported(path):
    """Every module of any package that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where arrows go"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if is_module(name) else str(node.module) for name in whole)


def is_module(name: str) -> bool:
    place = ROOT.parent.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").exists()


def test_every_room_has_a_floor():
    assert {room for room, _, _ in modules()} - {PUBLIC} == set(FLOOR)


def test_arrows_go_down_only():
    upward = []
    for room, name, path in modules():
        if room == PUBLIC:
            continue
        for other in imported(path):
            parts = other.split(".")
            if parts[0] != "apportion" or len(parts) == 1:
                continue
            if parts[1] != room and FLOOR[parts[1]] <= FLOOR[room]:
                upward.append(f"{name} → {other}")
    assert upward == []


def test_no_folder_has_a_cycle():
    arrows = defaultdict(set)
    for _, name, path in modules():
        for other in imported(path):
            if other.startswith("apportion.") and other != "apportion.cli":
                arrows[name].add(other.removeprefix("apportion."))
    TopologicalSorter(arrows).prepare()  # a cycle is an error that names it


def test_no_file_name_stands_twice():
    names = [path.name for _, _, path in modules() if path.name != "__init__.py"]
    assert sorted(set(names)) == sorted(names)


def test_only_two_rooms_know_the_hubs_libraries():
    for room, _, path in modules():
        known = {name.split(".")[0] for name in imported(path)} & {"transformers", "datasets"}
        assert not known or room in ("data", "models"), path


def test_rooms_stay_small():
    for _, _, path in modules():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 350, path


def test_the_public_names_are_these():
    assert sorted(apportion.__all__) == [
        "Allocation",
        "Answered",
        "Cascade",
        "Certificate",
        "Checkpoint",
        "Classification",
        "Converted",
        "Criterion",
        "Elastic",
        "Encoder",
        "EncoderConfig",
        "Epoch",
        "Fitted",
        "Forecast",
        "Frontier",
        "Governor",
        "HeadMask",
        "Latency",
        "Marked",
        "Outcome",
        "Point",
        "Recipe",
        "Reproduction",
        "Runtime",
        "Schedule",
        "Scored",
        "Skipping",
        "Split",
        "Table",
        "Task",
        "Tested",
        "Text",
        "Tick",
        "Tokenizer",
        "Trained",
        "Unit",
        "Units",
        "allocate",
        "calibrate",
        "certify",
        "convert",
        "cut",
        "evaluate",
        "export",
        "fit",
        "load",
        "measure",
        "predict_on_ray",
        "prune_heads",
        "recipe",
        "repair",
        "reproduce",
        "save",
        "sweep",
        "train",
        "training_bar",
        "tuning",
    ]
    assert all(hasattr(apportion, name) for name in apportion.__all__)
