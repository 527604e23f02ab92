"""Time, memory and energy of a model and its peers, measured side by side."""
