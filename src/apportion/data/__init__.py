"""Rows and tokens: what a model is trained, measured and asked on."""
