"""apportion: one transformer checkpoint, any compute budget."""

__version__ = "0.1.0"
