"""Our own encoder, and (later) models of the Hugging Face hub."""
