"""The paper's equations, and nothing that knows a model."""
