"""Reporting: records → tables, figures, one HTML page."""
