"""Serving: answers at any budget, and how long they take."""
