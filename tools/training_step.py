"""How long a training step of MiniLM takes, with freed memory kept and given back, taking turns.

    python tools/training_step.py --rounds 7

Each round starts a process for either arm: the allocator's thresholds hold for a whole process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from apportion.serving.bench.timing import median_interval

STEP = """
import time, torch
from apportion.training.allocator import keep_freed_memory
from apportion.models.hub import load_model
torch.set_num_threads(1)
keep_freed_memory()
model = load_model("minilm", ("a", "b", "c", "d"), seed=0).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
ids = torch.randint(1000, 30000, (16, 64))
labels = torch.randint(0, 4, (16,))
times = []
for step in range(STEPS):
    started = time.perf_counter()
    optimizer.zero_grad()
    model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    times.append(time.perf_counter() - started)
print(sorted(times[2:])[len(times[2:]) // 2])
"""


def main() -> None:
    """Prints the paired ratio of the two arms as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="processes of each arm")
    parser.add_argument("--steps", type=int, default=10, help="steps of each process; two warm up")
    options = parser.parse_args()
    ratios, kept_times = [], []
    for number in range(options.rounds):
        # Either arm comes first in turn.
        seconds = {off: _seconds(options.steps, off) for off in (number % 2 == 0, number % 2 == 1)}
        kept = seconds[False]
        ratios.append(seconds[True] / kept)
        kept_times.append(1000 * kept)
        print(f"{number + 1} of {options.rounds}: {ratios[-1]:.3f}", file=sys.stderr, flush=True)
    low, high = median_interval(ratios)
    found = {"speedup": statistics.median(ratios), "low": low, "high": high}
    print(json.dumps({**found, "ms": statistics.median(kept_times), "rounds": options.rounds}))


def _seconds(steps: int, off: bool) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("APPORTION_NO_MALLOPT", None)
    if off:
        environment["APPORTION_NO_MALLOPT"] = "1"
    code = STEP.replace("STEPS", str(steps))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    main()
