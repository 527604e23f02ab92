"""The governor: rules and readings in, a budget out; the machine as fake trees tell it, and once
as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.serving.milliseconds.governor import (
    Decision,
    Governor,
    Rule,
    Rules,
    decide,
    read_rules,
)
from apportion.serving.milliseconds.machine import SIGNALS, Machine

RULES = Rules(
    (
        Rule("pressure", 0.5, above=40.0, until=20.0),
        Rule("pressure", 0.25, above=80.0, until=60.0),
        Rule("battery", 0.125, below=20.0, until=30.0),
    ),
    hold=5.0,
)


def course(rules, *readings, every=1.0):
    """The budgets at some readings, one look after the other."""
    decision, budgets = Decision(rules.budget), []
    for number, reading in enumerate(readings):
        decision = decide(rules, reading, before=decision, now=every * number)
        budgets.append(decision.budget)
    return budgets


def pressures(*values):
    return [{"pressure": float(value)} for value in values]


def test_the_budget_falls_at_once_and_the_lowest_rule_wins():
    assert course(RULES, *pressures(0, 39, 40, 85)) == [1.0, 1.0, 0.5, 0.25]
    assert course(RULES, {"pressure": 90.0, "battery": 10.0}) == [0.125]


def test_a_rule_goes_on_until_its_signal_is_back_and_has_been_for_a_while():
    assert course(RULES, *pressures(50, 30, 21), every=100.0) == [0.5, 0.5, 0.5]
    assert course(RULES, *pressures(50, 20), every=100.0) == [0.5, 1.0]
    back = course(RULES, *pressures(50, 0, 0, 0, 0, 0, 0))
    assert back == [0.5] * 5 + [1.0] * 2
    # A moment of pressure on the way back begins the wait again.
    assert course(RULES, *pressures(50, 0, 0, 41, 0, 0, 0, 0, 0)) == [0.5] * 8 + [1.0]


def test_a_signal_between_until_and_above_begins_nothing():
    assert course(RULES, *pressures(30, 39.9, 21)) == [1.0] * 3


def test_below_is_above_upside_down():
    levels = [{"battery": float(value)} for value in (50, 20, 29, 30)]
    assert course(RULES, *levels, every=100.0) == [1.0, 0.125, 0.125, 1.0]


def test_a_signal_that_the_machine_does_not_tell_holds_no_rule():
    assert course(RULES, {}, {"load": 99.0}) == [1.0, 1.0]
    assert course(RULES, {"battery": 5.0}, {}, every=100.0) == [0.125, 1.0]


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=30))
def test_the_budget_is_never_above_that_of_a_rule_that_holds_now(values):
    for budget, value in zip(course(RULES, *pressures(*values)), values, strict=True):
        assert budget <= (0.25 if value >= 80.0 else 0.5 if value >= 40.0 else 1.0)


def governor_of(readings, file=None):
    clock = iter(range(1000))
    told = iter(readings)
    return Governor(file, read=lambda: next(told), clock=lambda: float(next(clock)))


def test_a_governor_follows_its_readings_and_says_why():
    governor = governor_of([{"pressure": 5.0}, {"pressure": 50.0}, {"pressure": 99.0}])
    assert governor.budget() == 1.0 and governor.reasons == ()
    assert governor.budget() == 0.5 and governor.reasons == ("pressure above 40: 50",)
    assert governor.level((0.375, 0.75, 1.0)) == 0.375  # 0.25 pays for none of them
    assert governor.untold == ("battery", "headroom") and governor.readings == {"pressure": 99.0}


def test_a_governor_looks_no_more_often_than_its_table_says(tmp_path):
    (tmp_path / "rules.toml").write_text("every = 3\n")
    looks = []
    now = iter(range(7))
    governor = Governor(
        tmp_path / "rules.toml",
        read=lambda: looks.append(1) or {},
        clock=lambda: float(next(now)),
    )
    for _ in range(7):
        governor.budget()
    assert len(looks) == 3


def test_a_table_is_read_from_a_file(tmp_path):
    (tmp_path / "rules.toml").write_text(
        'budget = 0.75\nhold = 2\n[[rule]]\nsignal = "load"\nabove = 1.5\nbudget = 0.5\n'
    )
    found = read_rules(tmp_path / "rules.toml")
    assert found == Rules((Rule("load", 0.5, above=1.5),), budget=0.75, hold=2)
    assert governor_of([{"load": 0.0}], tmp_path / "rules.toml").budget() == 0.75


RULE = '[[rule]]\nsignal = "load"\nabove = 2.0\nbudget = 0.5\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mood = 1", "unknown keys mood; known: budget, every, hold"),
        (RULE + "mood = 1", "rule 1 has unknown keys mood"),
        (RULE.replace("0.5", "0.0"), r"rule 1: a budget is a number in \(0, 1\], not 0\.0"),
        (RULE.replace("0.5", "1.5"), r"rule 1: a budget is a number in \(0, 1\], not 1\.5"),
        ("budget = -1", r"a budget is a number in \(0, 1\], not -1"),
        (RULE.replace("0.5", '"half"'), "budget must be a number, not 'half'"),
        (RULE.replace("load", "mood"), "rule 1: a signal is one of pressure, queue, .*'mood'"),
        (RULE.replace("budget = 0.5", ""), "rule 1 has no budget"),
        (RULE.replace("above = 2.0", ""), "either above or below"),
        (RULE + "below = 1.0", "either above or below"),
        (RULE + "until = 3.0", "ends at 3, where it would have begun already"),
        ("rule = 3", r"tables called \[\[rule\]\]"),
        ("hold = -1.0", r"hold is a number of seconds, not -1\.0"),
        ("budget = ", "not readable as TOML"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence(tmp_path, text, says):
    (tmp_path / "rules.toml").write_text(text)
    with pytest.raises(ValueError, match=rf"rules\.toml.*{says}"):
        Governor(tmp_path / "rules.toml", read=dict)


def test_without_psutil_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(ValueError, match=r"pip install 'apportion\[device\]'"):
        Governor()


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.toml"):
        Governor(tmp_path / "none.toml", read=dict)


# A machine as fake trees and a fake psutil tell it.


def sensor(current, high=None, critical=None):
    return SimpleNamespace(current=current, high=high, critical=critical)


def fake_psutil(**more):
    told = {"cpu_percent": lambda _: 12.5, "getloadavg": lambda: (3.0, 2.0, 1.0), **more}
    return SimpleNamespace(**told)


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "pressure").mkdir()
    (tmp_path / "stat").write_text("cpu 1 2 3\nprocs_running 9\nprocs_blocked 0\n")
    return tmp_path


def press(proc: Path, average: float, total: int) -> None:
    (proc / "pressure" / "cpu").write_text(
        f"some avg10={average:.2f} avg60=0.00 avg300=0.00 total={total}\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    )


def test_every_signal_is_read_from_where_linux_tells_it(proc, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("apportion.serving.milliseconds.machine.time", clock)
    press(proc, 33.0, 5_000_000)
    machine = Machine(
        proc,
        fake_psutil(
            sensors_battery=lambda: SimpleNamespace(percent=42, power_plugged=False),
            sensors_temperatures=lambda: {
                "cpu": [sensor(70.0, 90.0, 100.0), sensor(60.0)],
                "board": [sensor(50.0, None, 65.0)],
            },
        ),
    )
    found = machine()
    assert found == {
        "pressure": 33.0,
        "queue": 2.0,
        "load": 0.75,
        "busy": 12.5,
        "battery": 42.0,
        "headroom": 15.0,
    }
    assert set(found) == set(SIGNALS)
    now[0], _ = 102.0, press(proc, 33.0, 6_500_000)
    assert machine()["pressure"] == pytest.approx(75.0)  # 1.5 s waited in 2 s


def test_a_machine_without_battery_sensors_or_pressure_tells_the_rest(tmp_path):
    bare = SimpleNamespace(cpu_percent=lambda _: 0.0)
    assert Machine(tmp_path, bare)() == {"busy": 0.0}
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text("nothing that is known\n")
    (tmp_path / "stat").write_text("cpu 1\n")
    silent = fake_psutil(sensors_battery=lambda: None, sensors_temperatures=dict)
    assert set(Machine(tmp_path, silent)()) == {"busy", "load"}


def test_a_battery_is_read_from_a_fake_tree_and_is_full_while_plugged_in(tmp_path, monkeypatch):
    linux = pytest.importorskip("psutil._pslinux", reason="batteries are read on Linux")
    supply = tmp_path / "power_supply"
    for name, value in [("energy_now", 150), ("energy_full", 1000), ("power_now", 10)]:
        (supply / "BAT0").mkdir(parents=True, exist_ok=True)
        (supply / "BAT0" / name).write_text(f"{value}\n")
    (supply / "BAT0" / "status").write_text("Discharging\n")
    monkeypatch.setattr(linux, "POWER_SUPPLY_PATH", str(supply))
    assert Machine()()["battery"] == pytest.approx(15.0)
    assert Governor().budget() <= 0.25
    (supply / "AC0").mkdir()
    (supply / "AC0" / "online").write_text("1\n")
    assert Machine()()["battery"] == 100.0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="Linux tells its queue in /proc")
def test_busy_loops_beside_it_lower_the_budget_in_five_seconds_and_it_comes_back(tmp_path):
    """By tasks that run or wait, above what there was before: the test brings 16 per core."""
    machine = Machine()
    before = []
    for _ in range(20):
        before.append(machine()["queue"])
        time.sleep(0.1)
    loops = 16 * (os.cpu_count() or 1)
    (tmp_path / "rules.toml").write_text(
        "hold = 1.0\nevery = 0.2\n[[rule]]\nsignal = 'queue'\nbudget = 0.25\n"
        f"above = {max(before) + 10.0}\nuntil = {max(before) + 6.0}\n"
    )
    governor = Governor(tmp_path / "rules.toml")
    assert governor.budget() == 1.0
    script = "import os\nos.nice(19)\nwhile True: pass"  # in the queue, and in nobody's way
    busy = [subprocess.Popen([sys.executable, "-S", "-c", script]) for _ in range(loops)]
    try:
        assert wait_for(governor, 0.25, seconds=5.0)
        assert governor.reasons[0].startswith("queue above")
    finally:
        for one in busy:
            one.kill()
        for one in busy:
            one.wait()
    assert wait_for(governor, 1.0, seconds=20.0)


def wait_for(governor: Governor, budget: float, *, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if governor.budget() == budget:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_the_example_predicts_while_it_obeys_a_governor(tmp_path):
    from small_export import write_export
    from texts import rows

    from apportion.serving.runtime.session import Runtime

    folder = write_export(tmp_path)
    texts = [text for _, text in rows(20, 3)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    # A table that holds whatever the machine does, and one that never does.
    rules = "[[rule]]\nsignal = 'busy'\nabove = {}\nbudget = 0.3\n"
    (tmp_path / "always.toml").write_text(rules.format(0.0))
    (tmp_path / "never.toml").write_text(rules.format(101.0))
    example = Path(__file__).parents[2] / "examples" / "governed_prediction.py"
    for name, level in [("always", 0.25), ("never", 1.0)]:
        words = [
            str(folder),
            str(tmp_path / "texts.txt"),
            "--rules",
            str(tmp_path / f"{name}.toml"),
        ]
        done = subprocess.run(
            [sys.executable, str(example), *words], capture_output=True, text=True, check=True
        )
        found = [line.split("\t") for line in done.stdout.splitlines()]
        wanted = Runtime(folder).predict(texts, budget=level)
        assert [(label, float(share)) for label, share, _ in found] == [
            (label, pytest.approx(share, abs=1e-3)) for label, share in wanted
        ]
        assert {one[2] for one in found} == {f"{level:g}"}
        assert done.stderr.startswith(f"level {level:g}: {'busy' if level < 1 else 'no rule'}")
