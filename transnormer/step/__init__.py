"""One optimisation step and one evaluation, eager, compiled or as a CUDA graph: what `train` runs and `bench` times."""
