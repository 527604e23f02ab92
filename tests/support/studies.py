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
[[claim]]
says = "fast"
measure = "speedup"
method = "nested"
form = "skip"
budget = 0.25
at_least = 0.01
[[claim]]
says = "faster than light"
measure = "speedup"
method = "nested"
form = "skip"
budget = 0.25
at_least = 1000000.0
[[claim]]
says = "as good as specialists"
method = "nested"
form = "cut"
over = [0.25, 0.5]
against = "specialist"
against_form = "cut"
at_least = -100.0
[[claim]]
says = "better than specialists can be"
method = "nested"
form = "cut"
over = [0.25, 0.5]
against = "specialist"
against_form = "cut"
at_least = 101.0
[[claim]]
says = "at once"
measure = "switch_us"
method = "nested"
statistic = "highest"
at_most = 1000000.0
[[claim]]
says = "at once, weights copied"
measure = "copied_bytes"
method = "nested"
statistic = "highest"
at_most = 0
[[claim]]
says = "in some memory"
measure = "memory"
method = "nested"
statistic = "highest"
at_most = 100000.0
[[claim]]
says = "in no memory at all"
measure = "memory"
method = "nested"
statistic = "highest"
at_most = 0.0
[[claim]]
says = "trained in good time"
measure = "training_seconds"
method = "nested"
against = "dense"
ratio = true
at_most = 1000000.0
"""
