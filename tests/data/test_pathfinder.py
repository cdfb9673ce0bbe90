"""Pathfinder: pixel statistics of the original, growth by its rules, labels by the geometry, and the official files."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
from lra_files import write_pathfinder_folder
from PIL import Image

from transnormer.data.lra import pathfinder
from transnormer.data.lra.pathfinder import contours, generate, shard
from transnormer.data.lra.pathfinder.growth import Chain, Taken, extend
from transnormer.data.lra.pathfinder.stamps import NUM_SEEDS, stamps_for
from transnormer.errors import ConfigError, DataError

# Means and their standard errors over 20,500 pictures of size 32 made by the original's steps, one after the other.
ORIGINAL = {"pixel": (20.182, 0.014), "zeros": (0.6588, 0.0003), "distractors": (1.160, 0.006)}
# One attempt in 325 at a pair of contours succeeds there; one in twelve gets beyond the choice of its first direction.
ATTEMPTS, DIRECTIONS = 324.6, 30 / 360


@pytest.fixture(scope="module")
def sample() -> list[tuple[np.ndarray, int, dict]]:
    return [example for index in range(25) for example in shard(2024, index)]


def assert_mean(values: np.ndarray, expected: float, error: float = 0.0) -> None:
    """Within four standard errors of a figure that has an error of its own."""
    allowed = 4 * math.hypot(np.std(values) / math.sqrt(len(values)), error)
    assert np.mean(values) == pytest.approx(expected, abs=allowed)


def test_pixel_statistics(sample):
    pictures = np.stack([picture for picture, _, _ in sample])
    assert pictures.dtype == np.uint8
    assert pictures.shape == (2500, 32, 32)
    assert set(pictures.min(axis=(1, 2))) == {0}
    assert set(pictures.max(axis=(1, 2))) == {255}
    assert_mean(pictures.mean(axis=(1, 2)), *ORIGINAL["pixel"])
    assert_mean((pictures == 0).mean(axis=(1, 2)), *ORIGINAL["zeros"])


def test_counts(sample):
    assert_mean(np.array([label for _, label, _ in sample]), 0.5)
    assert_mean(np.array([len(metadata["distractors"]) for _, _, metadata in sample]), *ORIGINAL["distractors"])
    assert {metadata["contours"].shape for _, _, metadata in sample} == {(2, 14, 4)}


def test_how_many_attempts_succeed():
    stamps, rng = stamps_for(32, 1), np.random.default_rng(1)
    assert sum(len(places) > 0 for places in contours._central_tails(stamps)) / NUM_SEEDS == DIRECTIONS
    attempts, found = 0, 0
    for _ in range(12):
        attempts += stamps.settings.cohort
        found += len(contours._cohort(stamps, rng)[0])
    expected = attempts / (ATTEMPTS * DIRECTIONS)
    assert found == pytest.approx(expected, abs=4 * math.sqrt(expected))


def test_the_label_says_whether_one_contour_has_both_markers(sample):
    ambiguous = 0
    for _, label, metadata in sample:
        paths = metadata["contours"].reshape(2, 28, 2)  # (y, x) of tails and heads on the way
        origin, end = metadata["markers"]
        [begins] = np.flatnonzero([np.array_equal(path[0], origin) for path in paths])
        ends = np.flatnonzero([np.allclose(path[-1], end) for path in paths])
        assert len(ends)
        if len(ends) == 2:
            ambiguous += 1  # the last paddle of a contour is not taken, so the other may end on the same pixel
            continue
        assert label == (begins == ends[0])
        assert label == metadata["label"]
    assert ambiguous <= 0.01 * len(sample)


def test_contours_go_on_without_sharp_turns_or_leaps(sample):
    paddles = np.stack([metadata["contours"] for _, _, metadata in sample])
    tail, head = paddles[..., :2], paddles[..., 2:]
    along = head - tail
    assert np.allclose(np.hypot(along[..., 0], along[..., 1]), 2)
    gap = np.linalg.norm(tail[:, :, 1:] - head[:, :, :-1], axis=-1)
    assert gap.max() < 5
    assert 1 < np.median(gap) < 2.5
    # The pivot is not quite where the last paddle ends, so the drawn turn may exceed that of the headings a little.
    cosine = (along[:, :, 1:] * along[:, :, :-1]).sum(axis=-1) / 4
    assert cosine.min() > -1e-9
    assert ((head >= 0) & (head <= 31)).all()
    first, second = tail[:, 0, 0], tail[:, 1, 0]
    assert (np.abs(first - 15.5) <= 2).all()
    distance = np.linalg.norm(first - second, axis=-1)
    assert distance.min() > 6
    assert distance.max() < 8


def test_pictures_show_what_the_metadata_say(sample):
    y, x = np.mgrid[:32, :32]
    for picture, _, metadata in sample[:200]:
        near = np.zeros((32, 32), dtype=bool)
        strokes = np.concatenate([metadata["contours"].reshape(-1, 4), metadata["distractors"].reshape(-1, 4)])
        for stroke in strokes:
            middle = np.rint((stroke[:2] + stroke[2:]) / 2).astype(int)
            around = picture[max(0, middle[0] - 1) : middle[0] + 2, max(0, middle[1] - 1) : middle[1] + 2]
            assert around.max() > 60
            near |= np.hypot(y - middle[0], x - middle[1]) < 7
        for row, column in metadata["markers"]:
            assert picture[row, column] > 200
            near |= np.hypot(y - row, x - column) < 7
        assert not picture[~near].any()


def _literal_headings(pivot: tuple[int, int], direction: float, mask: np.ndarray) -> dict[tuple[int, int], float]:
    """The weight of each head, pixel by pixel: paddle length 2, margin 1, continuity 1."""
    weights = {}
    for angle in np.arange(0, 360, 360 / (2 * math.pi * 3)) * math.pi / 180:
        y, x = pivot[0] + 3 * math.sin(angle), pivot[1] + 3 * math.cos(angle)
        if not (0 <= y < 32 and 0 <= x < 32):
            continue
        head = (int(y), int(x))
        turn = abs(math.atan2(head[0] - pivot[0], head[1] - pivot[1]) - direction)
        turn = min(turn, 2 * math.pi - turn, math.pi / 2)
        plus = [(head[0] + dy, head[1] + dx) for dy, dx in ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0))]
        taken = max(mask[y, x] for y, x in plus if 0 <= y < 32 and 0 <= x < 32)
        weights[head] = (1 - taken / 255) * max(0.0, math.cos(turn)) ** 2
    return weights


def test_a_heading_is_drawn_by_freedom_and_straightness():
    """extend() on many copies of a state, against the rule written out: three draws, each rejected where it crosses."""
    stamps, rng, copies = stamps_for(32, 1), np.random.default_rng(0), 4000
    pairs, taken = contours.grow_pairs(stamps, rng, 30)
    crossings = []
    for picture in range(30):
        paddle, anchor = pairs[picture, 0, -1]  # not taken yet, unlike all others
        step = stamps.heads[paddle - NUM_SEEDS]
        pivot, angle = stamps.places(anchor) - step, math.atan2(*step)
        next_pivot = tuple(math.ceil(c + 4 * d) for c, d in zip(pivot, (math.sin(angle), math.cos(angle)), strict=True))
        mask = _cropped(stamps, taken.mask[picture])
        weights = _literal_headings(next_pivot, angle, mask)
        state = Taken(np.tile(taken.mask[picture], (copies, 1)), np.tile(taken.halo[picture], (copies, 1)))
        place = stamps.flat(pivot + stamps.border)
        chain = Chain(np.arange(copies), *(np.full(copies, each) for each in (paddle, anchor, place)))
        drawn = [tuple(place) for place in stamps.places(extend(stamps, rng, state, chain).anchor).tolist()]

        total = sum(weights.values())
        if total < 1e-4:
            assert not drawn
            continue
        fits = {head: _literally_fits(stamps, mask, head, next_pivot) for head in weights}
        crossing = sum(weight for head, weight in weights.items() if not fits[head]) / total
        for head, weight in weights.items():
            expected = copies * fits[head] * weight / total * (1 + crossing + crossing**2)
            assert drawn.count(head) == pytest.approx(expected, abs=4.5 * math.sqrt(expected) + 1e-9)
        crossings.append(crossing)
    assert sum(0 < crossing < 1 for crossing in crossings) > 3  # or nothing was tested
    assert crossings.count(0) > 3


def _cropped(stamps, canvas: np.ndarray) -> np.ndarray:
    edge = stamps.border
    return canvas.reshape(stamps.width, stamps.width)[edge:-edge, edge:-edge]


def _literally_fits(stamps, mask: np.ndarray, head: tuple[int, int], pivot: tuple[int, int]) -> bool:
    heading = stamps.heads.tolist().index([head[0] - pivot[0], head[1] - pivot[1]])
    alone = Taken(np.zeros((1, stamps.width**2), np.uint8), np.zeros((1, stamps.width**2), np.uint8))
    where = np.array([(head[0] + stamps.border) * stamps.width + head[1] + stamps.border])
    alone.add(stamps, Chain(np.array([0]), np.array([NUM_SEEDS + heading]), where, where))
    return (mask / 255 + _cropped(stamps, alone.mask) / 255).max() < 1.8 - 1e-9


def test_halos_are_dilated_masks():
    stamps, rng = stamps_for(32, 1), np.random.default_rng(0)
    _, taken = contours.grow_pairs(stamps, rng, 30)
    contours.grow_distractors(stamps, rng, taken)
    for mask, halo in zip(taken.mask, taken.halo, strict=True):
        framed = np.pad(_cropped(stamps, mask), 1)
        around = [framed[1:-1, 1:-1], framed[:-2, 1:-1], framed[2:, 1:-1], framed[1:-1, :-2], framed[1:-1, 2:]]
        assert np.array_equal(np.max(around, axis=0), _cropped(stamps, halo))


def test_distractors_that_fail_take_nothing():
    """What is taken in the end is what a replay of the paddles in the metadata takes, and no more."""
    stamps, rng = stamps_for(32, 1), np.random.default_rng(4)
    pairs, taken = contours.grow_pairs(stamps, rng, 40)
    before = taken.of(np.arange(40))
    found = contours.grow_distractors(stamps, rng, taken)
    for row, snakes in enumerate(found):
        for paddle, anchor in np.concatenate(snakes) if snakes else []:
            before.add(stamps, Chain(np.array([row]), np.array([paddle]), np.array([anchor]), np.array([anchor])))
    assert np.array_equal(before.mask, taken.mask)
    assert len(pairs) == 40


def same(ours, theirs) -> bool:
    return all(np.array_equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(ours, theirs, strict=True))


def test_a_set_depends_on_the_seed_alone():
    one = list(generate(130, seed=3, processes=1))
    assert same(one, list(generate(130, seed=3, processes=2)))
    assert same(one[:7], list(generate(7, seed=3, processes=1)))
    assert same(one[100:], shard(3, 1)[:30])
    assert not np.array_equal(one[0][0], shard(4, 0)[0][0])
    assert not np.array_equal(one[0][0], one[100][0])


def test_a_set_is_the_recorded_one():
    """A change here changes the data of every run."""
    digest = hashlib.sha256()
    for picture, label, _ in shard(0, 0):
        digest.update(picture.tobytes() + bytes([label]))
    assert digest.hexdigest()[:16] == "835060276f7f081a"


@pytest.mark.parametrize(("size", "margins", "pixel", "zeros"), [(64, {1}, 13.4, 0.74), (128, {2, 3}, 8.0, 0.86)])
def test_larger_sizes(size, margins, pixel, zeros):
    examples = shard(1, 0, size)
    pictures = np.stack([picture for picture, _, _ in examples])
    assert pictures.shape == (100, size, size)
    assert {metadata["paddle_margin"] for _, _, metadata in examples} == margins
    # The original's steps gave these for 60 and 300 pictures.
    assert_mean(pictures.mean(axis=(1, 2)), pixel, 0.15)
    assert_mean((pictures == 0).mean(axis=(1, 2)), zeros, 0.005)
    assert_mean(np.array([label for _, label, _ in examples]), 0.5)
    assert all(picture[y, x] > 240 for picture, _, metadata in examples for y, x in metadata["markers"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 32, 1), "count is -1"),
        ((1, -1, 32, 1), "seed -1"),
        ((1, 0, 48, 1), "size 48"),
        ((1, 0, 32, 0), "processes is 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        list(generate(*arguments))


@pytest.fixture
def folder(tmp_path: Path, sample) -> Path:
    path = tmp_path / "curv_contour_length_14"
    write_pathfinder_folder(path, sample[:1003])
    return path


def test_official_folders_round_trip(folder: Path, sample):
    back = list(pathfinder.read_official_folder(folder))
    assert len(back) == 1003
    assert same(back, sample[:1003])
    line = (folder / "metadata" / "1.npy").read_text().splitlines()[2]
    assert line == f"imgs/1 sample_2.png 2 {sample[1002][1]} 1.0 14 4 2 0.5 1 1"
    assert back[1002][2] == {
        "subpath": "imgs/1", "filename": "sample_2.png", "index": 2, "label": sample[1002][1], "continuity": 1.0,
        "contour_length": 14, "distractor_length": 4, "paddle_length": 2, "paddle_thickness": 0.5, "paddle_margin": 1,
        "num_contrasts": 1,
    }  # fmt: skip


def test_batches_are_read_in_the_order_of_their_numbers(tmp_path: Path, sample):
    for batch in (10, 9, 0):
        write_pathfinder_folder(tmp_path / "one", sample[batch : batch + 1])
        (tmp_path / "one" / "imgs" / "0").rename(tmp_path / "moved")
        (tmp_path / "all" / "imgs").mkdir(parents=True, exist_ok=True)
        (tmp_path / "all" / "metadata").mkdir(parents=True, exist_ok=True)
        (tmp_path / "moved").rename(tmp_path / "all" / "imgs" / str(batch))
        text = (tmp_path / "one" / "metadata" / "0.npy").read_text().replace("imgs/0", f"imgs/{batch}")
        (tmp_path / "all" / "metadata" / f"{batch}.npy").write_text(text)
        (tmp_path / "one" / "metadata" / "0.npy").unlink()
        (tmp_path / "one" / "metadata").rmdir()
        (tmp_path / "one" / "imgs").rmdir()
        (tmp_path / "one").rmdir()
    assert same(list(pathfinder.read_official_folder(tmp_path / "all")), [sample[0], sample[9], sample[10]])


def test_a_picture_of_zero_bytes_is_left_out_with_a_note(folder: Path, caplog: pytest.LogCaptureFixture):
    image = folder / "imgs" / "0" / "sample_172.png"
    image.write_bytes(b"")
    back = list(pathfinder.read_official_folder(folder))
    assert len(list(pathfinder.read_official_folder(folder))) == len(back), "and read again without another note"
    where = f"{folder / 'metadata' / '0.npy'} line 173"
    assert caplog.messages == [f"left out {image}, which has zero bytes ({where})"]
    assert len(back) == 1002
    assert [metadata["index"] for _, _, metadata in back[171:173]] == [171, 173]


GOOD = "imgs/0 sample_1.png 1 0 1.0 14 4 2 0.5 1 1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("imgs/0 sample_1.png 1 0 1.0 14 4 2 0.5 1", "10 columns instead of 11"),
        ("", "0 columns instead of 11"),
        (GOOD.replace(" 1 0 1.0", " 1 2 1.0"), "the label is 2"),
        (GOOD.replace(" 1 0 1.0", " 1 yes 1.0"), "label is 'yes'"),
        (GOOD.replace(" 1 0 1.0", " 1 nan 1.0"), "the label is nan"),
        (GOOD.replace("imgs/0", "../imgs/0"), "outside the folder"),
        (GOOD.replace("imgs/0", "/etc"), "outside the folder"),
        (GOOD.replace("sample_1", "sample_5000"), "sample_5000.png is missing"),
    ],
)
def test_bad_metadata_are_named(folder: Path, line, message):
    file = folder / "metadata" / "0.npy"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    pictures = pathfinder.read_official_folder(folder)
    next(pictures)
    with pytest.raises(DataError, match=message) as caught:
        list(pictures)
    assert f"{file} line 2" in caught.value.message
    assert caught.value.hint


def _png(path: Path, array: np.ndarray) -> None:
    Image.fromarray(array).save(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:200]), "cannot be read"),
        (lambda path: path.write_bytes(b"no picture"), "cannot be read"),
        (lambda path: _png(path, np.zeros((32, 32, 3), np.uint8)), "not an 8-bit gray picture but RGB"),
        (lambda path: _png(path, np.zeros((64, 64), np.uint8)), "is 64x64, not 32x32"),
        (lambda path: _png(path, np.zeros((32, 31), np.uint8)), "is 32x31, not 32x32"),
        (lambda path: path.unlink(), "is missing"),
    ],
)
def test_bad_pictures_are_named(folder: Path, damage, message):
    path = folder / "imgs" / "0" / "sample_1.png"
    damage(path)
    with pytest.raises(DataError, match=message) as caught:
        list(pathfinder.read_official_folder(folder))
    assert str(path) in caught.value.message
    assert "0.npy line 2" in caught.value.message


def test_bad_folders(tmp_path: Path, folder: Path):
    with pytest.raises(DataError, match=r"metadata has no \.npy files"):
        list(pathfinder.read_official_folder(tmp_path))
    with pytest.raises(DataError, match="is 32x32, not 64x64"):
        list(pathfinder.read_official_folder(folder, size=64))
    (folder / "metadata" / "1.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"1\.npy is empty"):
        list(pathfinder.read_official_folder(folder))
    np.save(folder / "metadata" / "0.npy", np.arange(3000.0))
    with pytest.raises(DataError, match=r"0\.npy is not text"):
        list(pathfinder.read_official_folder(folder))
