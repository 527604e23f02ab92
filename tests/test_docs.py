"""What the docs say is what the records and the code say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from apportion import records
from apportion.cli import app
from apportion.cli.experiments import results_of
from apportion.experiment import current, read_experiment
from apportion.report.markdown import fill
from apportion.report.study import study_tables

HOME = Path(__file__).parent.parent
FILLED = {
    "README.md": "marked-64",
    "docs/marked-64.md": "marked-64",
    "docs/marked-64-ablation.md": "marked-64-ablation",
}


@pytest.mark.parametrize(("page", "experiment"), FILLED.items())
def test_every_table_is_the_one_that_the_records_give(page, experiment):
    file = HOME / "experiments" / f"{experiment}.toml"
    plan = read_experiment(file)
    tables = study_tables(plan, current(plan, records.read(results_of(file))))
    text = (HOME / page).read_text(encoding="utf-8")
    assert "<!-- table: " in text
    assert fill(text, tables) == text, "run `make docs`"


def test_the_readmes_example_runs():
    text = (HOME / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    small = re.sub(r"epochs=\d+", "epochs=1", code)
    small = small.replace("train=4096", "train=64, validation=32, test=32").replace(
        "print(", "str("
    )
    names: dict[str, object] = {}
    exec(small, names)
    assert names["logits"].shape == (32, 2)


def test_the_readmes_commands_exist():
    text = (HOME / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^apportion (\w+)", text, flags=re.MULTILINE))
    assert named == set(get_command(app).commands)


def test_the_makefile_has_both_commands_of_the_readme():
    makefile = (HOME / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test", "check", "study", "docs"):
        assert re.search(rf"^{target}: ", makefile, flags=re.MULTILINE)


def test_every_link_in_the_docs_leads_somewhere():
    for page in [HOME / "README.md", *(HOME / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} → {target}"
