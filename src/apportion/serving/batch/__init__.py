"""Many texts: from rows to answers, on one machine or on Ray."""
