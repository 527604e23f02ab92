"""Experiment files of small studies."""

from __future__ import annotations

STUDY = """
name = "nested"
units = "all"
budgets = [0.25, 0.5]
[task]
kind = "marked"
length = 12
values = 4
distractors = 2
train = 64
validation = 32
test = 32
[model]
layers = 2
heads = 4
hidden = 16
feedforward = 128
[seeds]
data = [1]
optimisation = [7]
[timing]
batch = 8
repeats = 5
[[stage]]
method = "dense"
recipe = "dense"
epochs = 1
[[stage]]
method = "order"
from = "dense"
score = "squared-gradient"
nested = true
[[stage]]
method = "nested"
from = "order"
teacher = "dense"
recipe = "nested"
epochs = 1
latency = true
[[stage]]
method = "specialist"
from = "order"
teacher = "dense"
recipe = "recover"
each = [0.25, 0.5]
[[stage]]
method = "uniform"
from = "dense"
score = "uniform"
nested = true
[[goal]]
name = "fast"
method = "nested"
form = "skip"
budget = 0.25
speedup = 0.01
[[goal]]
name = "faster than light"
method = "nested"
form = "skip"
budget = 0.25
speedup = 1e6
[[goal]]
name = "as good as specialists"
method = "nested"
form = "cut"
against = "specialist"
against_form = "cut"
over = [0.25, 0.5]
within = 100.0
[[goal]]
name = "better than specialists can be"
method = "nested"
form = "cut"
against = "specialist"
against_form = "cut"
over = [0.25, 0.5]
within = -101.0
[[goal]]
name = "at once"
method = "nested"
switch_us = 1e6
[[goal]]
name = "in some memory"
method = "nested"
memory = 1e3
[[goal]]
name = "in no memory at all"
method = "nested"
memory = 0.0
[[goal]]
name = "trained in good time"
method = "nested"
against = "dense"
training = 1e6
"""
