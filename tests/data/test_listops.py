"""ListOps: the generator against the exact distribution of the official one, the language, and the official files."""

import hashlib
import itertools
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lra_files import write_listops_tsv

from transnormer.data.lra import listops
from transnormer.data.lra.listops import TOKENS, distinct, evaluate, generate, shard, to_tree_text, trees
from transnormer.data.lra.listops.language import fault
from transnormer.data.lra.streams import LISTOPS
from transnormer.data.sampling import generator
from transnormer.errors import ConfigError, DataError

# Values of 20,000 expressions made depth first, one random number after the other, as the official generator does.
OFFICIAL_VALUES = np.array([3410, 1833, 1524, 1719, 1813, 1661, 1554, 1419, 1741, 3326])


def ids(text: str) -> np.ndarray:
    return np.array([TOKENS.index(word) for word in text.split()], dtype=np.uint8)


@pytest.fixture(scope="module")
def sample() -> list[tuple[np.ndarray, int]]:
    return list(itertools.chain.from_iterable(shard(2024, index) for index in range(4)))


@pytest.fixture(scope="module")
def distribution() -> tuple[np.ndarray, np.ndarray]:
    """P(length) of a tree below 2,000 tokens and P(root's arguments, length): generating functions, level by level."""
    digit = np.zeros(2000)
    digit[1] = 1
    below, by_arity = digit, []
    for _ in range(9):
        power, by_arity = below, []
        for _ in range(2, 11):
            power = np.convolve(power, below)[:2000]
            by_arity.append(np.concatenate([[0, 0], power[:-2]]) / 4 / 9)
        below = 0.75 * digit + sum(by_arity)
    return below, np.array(by_arity)


def assert_drawn_from(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Pearson's chi square, at a level that a right generator misses once in some 30,000 times (4 sigma)."""
    counts, expected = np.asarray(counts), np.sum(counts) * np.asarray(probabilities) / np.sum(probabilities)
    freedom = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 4 * np.sqrt(2 * freedom) + 8


def test_one_tree_in_twelve_has_a_length_that_is_kept(distribution):
    expected = distribution[0][501:2000].sum()
    assert expected == pytest.approx(0.0828, abs=1e-4)
    drawn = 40_000
    length = trees.lengths(trees.grow(generator(5, 0, LISTOPS), drawn), drawn)
    kept = ((length > 500) & (length < 2000)).mean()
    assert kept == pytest.approx(expected, abs=4 * np.sqrt(expected / drawn))


def test_lengths(sample, distribution):
    length = np.array([len(tokens) for tokens, _ in sample])
    assert length.min() > 500
    assert length.max() < 2000
    kept = distribution[0][501:2000] / distribution[0][501:2000].sum()
    deciles = 501 + np.searchsorted(np.cumsum(kept), np.arange(0.1, 0.95, 0.1))
    assert deciles.tolist() == [577, 658, 747, 845, 954, 1078, 1225, 1406, 1643]
    edges = np.concatenate([[500], deciles, [1999]])
    probabilities = [kept[low - 500 : high - 500].sum() for low, high in itertools.pairwise(edges)]
    counts = [((length > low) & (length <= high)).sum() for low, high in itertools.pairwise(edges)]
    assert_drawn_from(counts, probabilities)
    assert length.mean() == pytest.approx(1035.0, abs=4 * 393.8 / np.sqrt(len(length)))


def test_roots(sample, distribution):
    # An argument of the root ends wherever one bracket is open.
    arity = [(np.cumsum((tokens <= 4).astype(int) - (tokens == 5))[1:] == 1).sum() for tokens, _ in sample]
    assert_drawn_from(np.bincount(arity, minlength=11)[2:], distribution[1][:, 501:2000].sum(axis=1))
    assert_drawn_from(np.bincount([tokens[0] for tokens, _ in sample], minlength=5)[1:5], np.ones(4))


def test_nine_nested_operators(sample):
    depths = [np.cumsum((tokens <= 4).astype(int) - (tokens == 5)).max() for tokens, _ in sample]
    assert set(depths) == {9}  # 20,000 of 20,000 with the official generator


def test_values_have_the_official_distribution(sample):
    counts = np.bincount([label for _, label in sample], minlength=10)
    both = counts / counts.sum() - OFFICIAL_VALUES / OFFICIAL_VALUES.sum()
    pooled = (counts + OFFICIAL_VALUES) / (counts.sum() + OFFICIAL_VALUES.sum())
    chi_square = (both**2 / pooled).sum() / (1 / counts.sum() + 1 / OFFICIAL_VALUES.sum())
    assert chi_square < 9 + 4 * np.sqrt(18) + 8


def test_digits_and_operators_are_uniform(sample):
    tokens = np.concatenate([tokens for tokens, _ in sample[:500]])
    counts = np.bincount(tokens, minlength=16)
    assert counts[0] == 0
    assert counts[1:5].sum() == counts[5]
    assert_drawn_from(counts[1:5], np.ones(4))
    assert_drawn_from(counts[6:], np.ones(10))


def test_values_by_the_independent_evaluator(sample):
    for tokens, label in sample[:1000]:
        assert evaluate(tokens) == label


def test_a_set_depends_on_the_seed_alone():
    one = list(generate(1300, seed=3, processes=1))
    two = list(generate(1300, seed=3, processes=2))
    assert all(np.array_equal(a, b) and x == y for (a, x), (b, y) in zip(one, two, strict=True))
    assert not np.array_equal(one[0][0], next(iter(generate(1, seed=4, processes=1)))[0])


def test_a_shard_is_independent_of_the_others():
    whole = list(generate(2200, seed=8, processes=1))
    assert all(np.array_equal(a, b[0]) for (a, _), b in zip(whole[1000:2000], shard(8, 1), strict=True))
    assert all(np.array_equal(a, b[0]) for (a, _), b in zip(whole[:7], generate(7, seed=8, processes=1), strict=True))


def test_a_set_is_the_recorded_one():
    """A change here changes the data of every run."""
    digest = hashlib.sha256()
    for tokens, label in generate(100, seed=0, processes=1):
        digest.update(tokens.tobytes() + bytes([label]))
    assert digest.hexdigest()[:16] == "a13ec52ac52b9f13"


def test_no_expression_comes_twice():
    a, b = (ids("[MAX 1 2 ]"), 2), (ids("[MIN 1 2 ]"), 1)
    assert [example[1] for example in distinct([a, b, a, (a[0].copy(), 2), b])] == [2, 1]


def test_repeats_across_shards_are_made_up_for(monkeypatch: pytest.MonkeyPatch):
    examples = [(np.array([1, 6 + k, 6, 5], dtype=np.uint8), 0) for k in range(10)]
    monkeypatch.setattr(listops, "shard", lambda seed, index: examples[index : index + 3])
    made = list(generate(6, seed=0, processes=1))
    assert [int(tokens[1]) - 6 for tokens, _ in made] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-1, 0, 1), "count is -1"), ((1, -1, 1), "seed -1"), ((1, 0, 0), "processes is 0")],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        list(generate(*arguments))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MED 4 1 9 ]", 4),
        ("[MED 1 4 4 9 ]", 4),
        ("[MED 9 2 ]", 5),
        ("[MED 0 1 ]", 0),
        ("[SM 9 8 7 ]", 4),
        ("[SM [SM 5 5 ] [MAX 0 3 ] 9 ]", 2),
    ],
)
def test_evaluate(text, value):
    assert evaluate(ids(text)) == value
    assert evaluate([*ids(text), 0, 0]) == value


TREES = st.recursive(
    st.integers(0, 9),
    lambda below: st.tuples(st.sampled_from(TOKENS[1:5]), st.lists(below, min_size=1, max_size=6)),
    max_leaves=40,
)


def _text(tree) -> str:
    return str(tree) if isinstance(tree, int) else f"{tree[0]} {' '.join(map(_text, tree[1]))} ]"


def _value(tree) -> int:
    if isinstance(tree, int):
        return tree
    by_name = {"[MIN": min, "[MAX": max, "[MED": lambda v: int(statistics.median(v)), "[SM": lambda v: sum(v) % 10}
    return by_name[tree[0]]([_value(each) for each in tree[1]])


@given(TREES)
def test_evaluate_agrees_with_the_tree(tree):
    assert evaluate(ids(_text(tree))) == _value(tree)


@given(TREES, st.integers(10, 80))
def test_printed_trees_have_the_same_tokens(tree, width):
    tokens = ids(_text(tree))
    printed = to_tree_text(tokens, width)
    assert printed.split() == _text(tree).split()


def test_printed_trees_are_indented():
    assert to_tree_text(ids("[SM 1 [MAX 2 [MIN 3 4 ] ] 5 ]"), width=22).splitlines() == [
        "[SM",
        "  1",
        "  [MAX 2 [MIN 3 4 ] ]",
        "  5",
        "]",
    ]


@given(st.lists(st.integers(1, 15), max_size=12))
def test_both_checks_of_an_expression_agree(tokens):
    try:
        evaluate(tokens)
        well_formed = True
    except DataError:
        well_formed = False
    assert (fault(np.array(tokens, dtype=np.uint8)) is None) == well_formed


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "empty"),
        ([1, 6], "ends too early"),
        ([6, 7], "token 1 comes after the end"),
        ([5], "token 0 closes nothing"),
        ([1, 2, 5, 5], "token 2 closes an empty list"),
        ([1, 6, 16, 5], "token 2 is 16"),
        ([1, 0, 6, 5], "token 1 is 0"),
    ],
)
def test_what_is_no_expression(tokens, message):
    with pytest.raises(DataError, match=message):
        evaluate(tokens)


def test_official_files_round_trip(tmp_path: Path, sample):
    path = tmp_path / "basic_val.tsv"
    write_listops_tsv(path, sample[:50])
    back = list(listops.read_official_tsv(path))
    assert len(back) == 50
    assert all(np.array_equal(a, b) and x == y for (a, x), (b, y) in zip(back, sample, strict=False))
    assert back[0][0].dtype == np.uint8


def test_official_text(tmp_path: Path):
    path = tmp_path / "basic_test.tsv"
    write_listops_tsv(path, [(ids("[MAX 4 3 ]"), 4), (ids("[MIN [SM 1 2 ] 3 ]"), 3), (ids("7"), 7)])
    assert path.read_bytes() == (
        b"Source\tTarget\r\n( ( ( [MAX 4 ) 3 ) ] )\t4\r\n( ( ( [MIN ( ( ( [SM 1 ) 2 ) ] ) ) 3 ) ] )\t3\r\n7\t7\r\n"
    )


@pytest.mark.parametrize("line", [b"( ( ( [MAX 4 ) 3 ) ] )\t4\n", b"( ( ( [MAX 4 ) 3 ) X )\t4\r\n", b"[MAX 4 3 ]\t4"])
def test_variants_of_a_line(tmp_path: Path, line):
    path = tmp_path / "basic_train.tsv"
    path.write_bytes(b"Source\tTarget\n" + line)
    [(tokens, label)] = listops.read_official_tsv(path)
    assert (tokens.tolist(), label) == (ids("[MAX 4 3 ]").tolist(), 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[MAX 4 3 ]", "1 columns instead of 2"),
        (b"[MAX 4 3 ]\t4\t4", "3 columns instead of 2"),
        (b"", "1 columns instead of 2"),
        (b"[MAX 4 3 ]\t10", "the label is 10"),
        (b"[MAX 4 3 ]\t-1", "the label is -1"),
        (b"[MAX 4 3 ]\tfour", "four"),
        (b"[MAX 4 3 ]\t", "invalid literal"),
        (b"[FIRST 4 3 ]\t4", r"unknown token '\[FIRST'"),
        (b"[MAX 4 <pad> ]\t4", "unknown token '<pad>'"),
        (b"[MAX 4 \xff ]\t4", "ascii"),
        (b"[MAX 4 3\t4", "ends too early"),
        (b"( )\t4", "empty"),
        (b"[MAX " + b"4 " * 1_999 + b"]\t4", "2,001 tokens"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line, message):
    path = tmp_path / "basic_train.tsv"
    path.write_bytes(b"Source\tTarget\r\n[MIN 1 2 ]\t1\r\n" + line + b"\r\n[MIN 1 2 ]\t1\r\n")
    lines = listops.read_official_tsv(path)
    next(lines)
    with pytest.raises(DataError, match=message) as caught:
        list(lines)
    assert f"{path} line 3: " in caught.value.message
    assert caught.value.hint


def test_the_longest_line(tmp_path: Path):
    path = tmp_path / "basic_train.tsv"
    path.write_bytes(b"Source\tTarget\n[MAX " + b"4 " * 1_998 + b"]\t4")
    [(tokens, _)] = listops.read_official_tsv(path)
    assert len(tokens) == 2_000


def test_bad_files(tmp_path: Path):
    path = tmp_path / "basic_train.tsv"
    with pytest.raises(DataError, match="No such file"):
        list(listops.read_official_tsv(path))
    path.write_bytes(b"Source\tTarget\n")
    with pytest.raises(DataError, match="no examples"):
        list(listops.read_official_tsv(path))
    path.write_bytes(b"[MIN 1 2 ]\t1\n")
    with pytest.raises(DataError, match="line 1: the header is"):
        list(listops.read_official_tsv(path))
