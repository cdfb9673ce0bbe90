"""The zoo: one file is one attention, one nn.Module, one registry name."""
