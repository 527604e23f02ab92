"""Training: one loop, on Accelerate, for every recipe."""
