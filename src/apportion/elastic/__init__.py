"""A model with a knob: wrap, score, repair, evaluate, save."""
