"""What models and runs show of the paper's two devils: numbers, tables of them, and pictures."""
