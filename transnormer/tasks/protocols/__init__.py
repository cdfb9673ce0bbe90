"""How a causal language model reads a stream of tokens that it is scored on: one file a protocol."""
