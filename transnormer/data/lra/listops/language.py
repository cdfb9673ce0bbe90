"""The language of ListOps: its fifteen tokens, what an expression is worth, and how it is printed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transnormer.errors import DataError

# The id of a token is its index. LRA's own tokenizer drops punctuation, so LRA writes "]" as "X": the same token.
TOKENS = ("<pad>", "[MIN", "[MAX", "[MED", "[SM", "]", *"0123456789")
PAD, MIN, MAX, MED, SM, CLOSE, ZERO = range(7)
NUM_CLASSES = 10


def evaluate(tokens: np.ndarray | Sequence[int]) -> int:
    """The value 0 .. 9 of an expression, one token after the other; a DataError says where it is no expression.

    MED of an even number of values is the mean of the middle two without its fraction; SM is the sum modulo 10.
    """
    waiting: list[tuple[int, list[int]]] = []  # operators whose "]" has not come yet, with the values so far
    result: int | None = None
    for index, token in enumerate(_without_padding(tokens)):
        if result is not None:
            raise DataError(f"token {index} comes after the end of the expression")
        if MIN <= token <= SM:
            waiting.append((token, []))
            continue
        if token == CLOSE:
            if not waiting or not waiting[-1][1]:
                raise DataError(f"token {index} closes {'an empty list' if waiting else 'nothing'}")
            value = _apply(*waiting.pop())
        elif ZERO <= token < len(TOKENS):
            value = token - ZERO
        else:
            raise DataError(f"token {index} is {token}; ListOps has tokens 1 .. {len(TOKENS) - 1}, and 0 for padding")
        if waiting:
            waiting[-1][1].append(value)
        else:
            result = value
    if result is None:
        raise DataError("the expression ends too early" if waiting else "the expression is empty")
    return result


def _apply(operator: int, values: list[int]) -> int:
    if operator == MIN:
        return min(values)
    if operator == MAX:
        return max(values)
    if operator == SM:
        return sum(values) % 10
    values, middle = sorted(values), len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) // 2


def fault(tokens: np.ndarray) -> str | None:
    """What keeps tokens 1 .. 15 from being one expression, or None: as `evaluate`, but without the value and fast."""
    if not len(tokens):
        return "the expression is empty"
    opens, closes = (tokens >= MIN) & (tokens <= SM), tokens == CLOSE
    depth = np.cumsum(opens.astype(np.int64) - closes)  # after each token
    if depth.min() < 0:
        return f"token {int(np.argmax(depth < 0))} closes nothing"
    if depth[-1] > 0:
        return "the expression ends too early"
    if len(empty := np.flatnonzero(opens[:-1] & closes[1:])):
        return f"token {int(empty[0]) + 1} closes an empty list"
    ends = np.flatnonzero(depth == 0)
    return f"token {int(ends[0]) + 1} comes after the end of the expression" if len(ends) > 1 else None


def to_tree_text(tokens: np.ndarray | Sequence[int], width: int = 100) -> str:
    """The expression over several lines: what fits into `width` stays on one line, longer lists are indented."""
    evaluate(tokens)  # says what is wrong with an expression that cannot be printed
    lines: list[list[str]] = []  # per open operator: itself, then its printed arguments
    printed = ""
    for token in _without_padding(tokens):
        if MIN <= token <= SM:
            lines.append([TOKENS[token]])
            continue
        printed = TOKENS[token] if token != CLOSE else _joined(lines.pop(), width - 2 * len(lines))
        if lines:
            lines[-1].append(printed)
    return printed


def _joined(parts: list[str], width: int) -> str:
    """An operator and its arguments; arguments of one line share lines as long as they fit."""
    flat = " ".join([*parts, "]"])
    if len(flat) <= width and "\n" not in flat:
        return flat
    rows: list[str] = [parts[0]]
    for part in parts[1:]:
        fits = len(rows[-1]) + 1 + len(part) <= width and "\n" not in part + rows[-1] and len(rows) > 1
        if fits:
            rows[-1] += " " + part
        else:
            rows.append("  " + part.replace("\n", "\n  "))
    return "\n".join([*rows, "]"])


def _without_padding(tokens: np.ndarray | Sequence[int]) -> list[int]:
    listed = [int(token) for token in tokens]
    while listed and listed[-1] == PAD:
        listed.pop()
    return listed
