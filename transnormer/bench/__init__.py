"""Numbers about speed and memory; each is printed only after its correctness gate has passed."""
