"""Several runs under one command: the demo, and the jobs of the paper's tables."""
