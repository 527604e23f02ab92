"""Drivers: what runs the stages of a study."""
