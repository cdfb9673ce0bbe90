"""Text from a model: one decoder on a state of constant size, Hugging Face's generate elsewhere."""
