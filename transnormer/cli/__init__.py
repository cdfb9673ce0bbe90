"""The `transnormer` command: one file per verb, nothing heavy imported until a verb runs."""
