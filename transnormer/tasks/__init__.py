"""What is learned and how it is scored."""
