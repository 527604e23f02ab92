"""Answers that differ from the whole model's no more often than promised."""
