"""Several runs under one command: the demo, and the paper's grids."""
