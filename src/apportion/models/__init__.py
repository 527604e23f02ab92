"""Models: where units live, cutting, loading, reloading."""
