"""How a model learns: the loop, the optimizer, checkpoints that survive faults, the record of a run."""
