"""Budgets in milliseconds: what a call takes on this machine, and what the machine can give."""
