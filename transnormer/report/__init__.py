"""Pages made of run folders and result files; no model, no GPU, no training code."""
