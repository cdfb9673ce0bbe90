"""Streaming decode: text token by token, on a state that stays the same size."""
