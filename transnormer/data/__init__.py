"""Text to tokens: corpora, tokenizers, the token store on disk, and the order in which it is read."""
