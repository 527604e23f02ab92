"""Peers run the same weights in other ways: they answer alike, or say why they are not there."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from nested_texts import nested_checkpoint
from texts import rows

from apportion.serving.bench.energy import joules_between, joules_per_call, read_counters
from apportion.serving.bench.footprint import measure_footprint, resident_bytes
from apportion.serving.bench.peer_files import PeerFiles, graph_of
from apportion.serving.bench.peers import NAMED, PEERS, Setting, build_peers

TEXTS = [text for _, text in rows(40, 3)]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> PeerFiles:
    home = tmp_path_factory.mktemp("peers")
    return PeerFiles(nested_checkpoint(home), home / "work", TEXTS)


def answers_of(files: PeerFiles, *names: str) -> dict[tuple[str, float], np.ndarray]:
    """What each arm that could be built says of a few texts."""
    built = build_peers(files, Setting(), names=names)
    assert {name for name, _ in built.arms} | set(built.left_out) == set(names)
    words = files.checkpoint.words
    inputs = words.pad_arrays(words.encode(TEXTS[:12]))
    return {arm: answer(**inputs) for arm, answer in built.arms.items()}


def test_the_first_peer_is_the_model_as_it_was_given():
    """Everything else is compared with it."""
    assert PEERS[0].name == "torch" and NAMED["torch"].beside == "torch"
    assert len(NAMED) == len(PEERS)


def test_torch_views_and_the_file_answer_alike_in_single_precision(files):
    found = answers_of(files, "torch", "torch-shortcut", "views", "file")
    dense = found["torch", 1.0]
    assert dense.std() > 0.1
    for arm in ("torch-shortcut", "views", "file"):
        np.testing.assert_allclose(found[arm, 1.0], dense, atol=1e-4)
    for level in files.levels:
        np.testing.assert_allclose(found["file", level], found["views", level], atol=1e-4)
        assert level == 1.0 or np.abs(found["views", level] - dense).max() > 1e-2


def test_the_int8_file_is_near_the_other_at_every_level(files):
    found = answers_of(files, "file", "file-int8", "file-int8-dynamic")
    for level in files.levels:
        for arm in ("file-int8", "file-int8-dynamic"):
            error = np.abs(found[arm, level] - found["file", level])
            assert 0 < error.mean() < 0.2 * found["file", level].std()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own insides
def test_every_peer_that_can_be_built_answers_as_the_dense_model_does(files):
    found = answers_of(files, *(peer.name for peer in PEERS if not peer.of_levels))
    dense = found["torch", 1.0]
    for (name, _), own in found.items():
        if NAMED[name].int8:
            assert 0 < np.abs(own - dense).mean() < 0.4 * dense.std(), name
        else:
            np.testing.assert_allclose(own, dense, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("package", ["openvino", "onnxruntime", "onnxscript"])
def test_a_missing_package_leaves_its_arms_out_with_a_reason(files, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    needing = [peer.name for peer in PEERS if package in peer.packages]
    built = build_peers(files, Setting(), names=needing)
    assert needing and not built.arms
    assert built.left_out == {name: f"{package} is not installed" for name in needing}


def test_without_a_compiler_the_compiled_arm_is_left_out(files, monkeypatch):
    monkeypatch.setenv("PATH", "")
    built = build_peers(files, Setting(), names=["torch-compiled"])
    assert built.left_out == {"torch-compiled": "torch.compile needs a C++ compiler"}


def test_a_file_that_is_there_is_not_written_again(files, monkeypatch):
    folder = files.one_file(int8=False)
    monkeypatch.setattr(
        "apportion.serving.bench.peer_files.export", lambda *_, **__: pytest.fail("written again")
    )
    assert files.one_file(int8=False) == folder


def test_resident_memory_is_read_as_linux_writes_it(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t  900 kB\nVmRSS:\t  512 kB\n")
    assert resident_bytes(status) == 512 * 1024
    status.write_text("Name:\tpython\n")
    with pytest.raises(ValueError, match="has no VmRSS"):
        resident_bytes(status)


@pytest.mark.slow
def test_a_process_with_a_session_holds_more_than_one_without(files):
    alone = measure_footprint([])
    graph = graph_of(files.one_file(int8=False))
    assert measure_footprint([(graph, list(files.levels))], rows=2, tokens=16) > alone > 1e6


@pytest.fixture
def powercap(tmp_path):
    """Two processors and a part of one, as the kernel shows them."""
    for name, used in (("intel-rapl:0", 100), ("intel-rapl:1", 900), ("intel-rapl:0:0", 50)):
        zone = tmp_path / name
        zone.mkdir()
        (zone / "energy_uj").write_text(f"{used}\n")
        (zone / "max_energy_range_uj").write_text("1000\n")
    (tmp_path / "intel-rapl").mkdir()
    return tmp_path


def test_joules_are_those_of_whole_processors(powercap):
    before = read_counters(powercap)
    assert {zone.name: used for zone, used in before.items()} == {
        "intel-rapl:0": 100,
        "intel-rapl:1": 900,
    }
    counter = powercap / "intel-rapl:0" / "energy_uj"

    def call() -> None:
        counter.write_text(f"{int(counter.read_text()) + 30}\n")

    assert joules_per_call(call, seconds=0.0, root=powercap) == pytest.approx(30e-6)


def test_a_counter_that_was_full_starts_again(powercap):
    before = read_counters(powercap)
    (powercap / "intel-rapl:1" / "energy_uj").write_text("40\n")
    assert joules_between(before, read_counters(powercap)) == pytest.approx(140e-6)


def test_without_counters_there_is_no_number(powercap, tmp_path):
    assert joules_per_call(lambda: None, root=tmp_path / "nowhere") is None
    (powercap / "intel-rapl:1" / "energy_uj").unlink()  # as one that only root may read
    assert read_counters(powercap) == {}
