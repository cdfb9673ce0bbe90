"""One backbone, four heads, and the paper's sizes, as Hugging Face models."""
