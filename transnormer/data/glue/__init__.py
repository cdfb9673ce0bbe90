"""Seven tasks of the General Language Understanding Evaluation (Wang et al. 2018): classify sentences, or pairs."""
