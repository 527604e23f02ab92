"""Studies: an experiment file becomes stages, records and a report."""
