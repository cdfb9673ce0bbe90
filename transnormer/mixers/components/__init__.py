"""What several mixers are built from, or one that would be too long: nothing here is a mixer by itself."""
