"""What is promised about faults: each promise with what was asked of its tests, its limits, and what others do.

`make reliability` counts the cases of the tests that carry a promise's mark and writes results/reliability.json;
`table` and `details` are docs/promises.md as that record has it. What others do was measured and read by us, in their
code of mid 2026, before this code was written: it is background, not a part of the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transnormer.markdown import markdown_table
from transnormer.report.markdown import read_record

RECORD = "reliability.json"


@dataclass(frozen=True)
class Promise:
    """One line of the battery."""

    id: str
    name: str
    promise: str
    asked: int  # cases
    asked_for: str
    limits: str


PROMISES = (
    Promise(
        "R1",
        "kill -9",
        "A run that is killed at any moment resumes by itself and ends with the same weights, bit for bit.",
        24,
        "every file operation of a save and of a prune",
        "Power loss is not a kill: what fsync has promised and the disk has not kept is found, not restored.",
    ),
    Promise(
        "R2",
        "flipped bits",
        "A flipped bit in a checkpoint is found before any tensor is used; resume falls back, other commands refuse.",
        200,
        "200 flips, through resume, eval, generate and export",
        "Between the check and the read the file is trusted; memory that flips bits is not watched.",
    ),
    Promise(
        "R3",
        "cut, missing, replaced files",
        "A file that is short, gone, extra, a folder or a link is named; none valid is exit 3, never a fresh start.",
        49,
        "each file of a checkpoint in seven shapes of damage",
        "Whoever can write the folder can also seal a manifest anew: a hash is no signature.",
    ),
    Promise(
        "R4",
        "resume anywhere",
        "A run that is stopped after any step and resumed gives the same losses and weights, bit for bit.",
        48,
        "steps 1 to 12 of a causal and a masked model, GLUE and the Arena",
        "On one device type, one number of threads and one version of PyTorch.",
    ),
    Promise(
        "R5",
        "preemption",
        "SIGTERM or SIGINT at any moment of a run is exit 75 with a valid checkpoint; a second one ends it at once.",
        13,
        "ten random moments, and two signals in a row",
        "A step in progress is finished first: a scheduler's grace must be longer than a step and a save. Until Python "
        "has loaded the command, or while a new run has no config yet, a signal ends it like any program.",
    ),
    Promise(
        "R6",
        "NaN and infinity",
        "A loss, gradient, input or state that is not finite never reaches a checkpoint: stop, skip or rewind.",
        12,
        "loss, gradient, input and state; stop, skip, rewind",
        "A wrong number that is finite is not noticed.",
    ),
    Promise(
        "R7",
        "disk full, read-only, broken",
        "A disk that refuses is exit 6 with bytes needed and free; the last checkpoint stays, and the run resumes.",
        20,
        "every file operation of a save refused, every sync of a run",
        "A disk that says it has written and has not (a Byzantine one) is found by the hashes at the next read.",
    ),
    Promise(
        "R8",
        "two writers",
        "A second process on a run folder is refused and changes nothing; the lock of a dead one is taken over.",
        3,
        "a second writer, a dead one, a used folder",
        "Locks are the file system's: on a network disk without locks nobody is kept out.",
    ),
    Promise(
        "R9",
        "hostile files",
        "No file of a checkpoint, model or data set runs code or takes more than a GiB to be refused.",
        40,
        "every name that others unpickle, bombs, links, tags",
        "The package and its dependencies are trusted; code of a user's own recipe folder is not run at all.",
    ),
    Promise(
        "R10",
        "changed data",
        "A store that was cut, swapped or edited is refused, exit 5, with the file; `data verify` places any flip.",
        200,
        "200 flips",
        "`data verify` names the 64 KiB of a shard, in older stores the shard; a run hashes its store when it begins "
        "and then goes by size and time of change: an edit that sets the time back is `data verify`'s to find.",
    ),
    Promise(
        "R11",
        "number of processes",
        "A run goes from one process to two and back with the same loss curve; on the same number bit for bit.",
        6,
        "one to two, two to one, two to two, one of two killed",
        "gloo on CPUs here, DDP and FSDP; the order of sums over another number of processes differs in the last bits.",
    ),
    Promise(
        "R12",
        "a storm",
        "Killed and signalled again and again, a run under a restart loop ends as the undisturbed one does.",
        30,
        "300 steps, 30 deaths",
        "Each life must outlast one save, or nothing is gained.",
    ),
    Promise(
        "R13",
        "any config",
        "Any settings give a config that builds and survives its dump, or a ConfigError, and nothing else.",
        1000,
        "1,000 configs, built on meta where they are valid",
        "A model that is built may still be larger than the memory.",
    ),
    Promise(
        "R14",
        "old checkpoints",
        "A run of an earlier version resumes, scores and loads; one of a later version is refused in words.",
        4,
        "a run of 4afd138, and of each release from now on",
        "Before 4afd138 nothing is promised.",
    ),
    Promise(
        "R15",
        "state of generation",
        "The state of a recurrent method is as large after 64k tokens as after 1k, and step equals parallel.",
        7,
        "every recurrent method at 1k and 64k",
        "In float32; half precision rounds each step.",
    ),
    Promise(
        "R16",
        "determinism",
        "The same run twice gives the same bits, with each mixer.",
        17,
        "every mixer trained twice",
        "On a CPU. GPU kernels that add atomically are deterministic only where PyTorch's are.",
    ),
    Promise(
        "R17",
        "frozen and killed workers",
        "A worker of data preparation, or a rank, that dies, freezes or never comes is named; those that wait end.",
        2,
        "workers and ranks",
        "Ranks over gloo here; a kernel that freezes on a GPU is NCCL's to notice, after train.rank_timeout.",
    ),
    Promise(
        "R18",
        "truthful journal",
        "Every line is JSON after any death, each step is there once, and reported numbers equal recomputed ones.",
        20,
        "cut at any byte of a line; numbers recomputed",
        "A line that was edited by hand and is still a line is believed.",
    ),
)

# By those who wrote it: HF Trainer, accelerate, Fabric, torch DCP, litgpt. M: measured by us, C: read in their code.
OTHERS: dict[str, tuple[str, str, str, str, str]] = {
    "R1": (
        "crashes on resume (M)",
        "FileNotFoundError (M)",
        "survives (M), no fsync",
        "tmp and rename, fsync (C)",
        "as Fabric (C)",
    ),
    "R2": (
        "loads silently (M)",
        "loads silently (M)",
        "loads silently (M)",
        "loads silently (M)",
        "loads silently (C)",
    ),
    "R3": ("largest number is newest (C)", "", "", "truncated shard found (M)", ""),
    "R4": (
        "bit-exact when scheduled (M)",
        "a missing RNG file is passed over (M)",
        "no RNG in it (M)",
        "",
        "not exact (issue 1712)",
    ),
    "R5": ("resumed run differs (M)", "", "broadcast in the handler (C)", "", ""),
    "R6": ("logs 0.0, exit 0, NaN weights (M)", "", "", "", ""),
    "R9": ("weights_only (C)", "", "", "unpickles .metadata: runs code (M)", ""),
    "R18": ("loss 0.0 for NaN (M)", "", "", "", "tokens/s wrong (C)"),
}
_OTHER_NAMES = ("HF Trainer", "accelerate", "Fabric", "torch DCP", "litgpt")
_NOT_TRIED = "–"


def table(results: Path) -> str:
    """Cases done beside cases asked, promise by promise; says so where there is no record."""
    record = read_record(results / RECORD)
    if record is None:
        return "There is no record yet: `make reliability` writes `results/reliability.json`.\n"
    rows = []
    for promise in PROMISES:
        found = record["promises"].get(promise.id)
        rows.append([promise.id, promise.name, promise.asked_for, f"{promise.asked:,}", *_outcome(promise, found)])
    environment = record["environment"]
    where = f"{environment['hardware']['cpu']}, {environment['hardware']['cores']} cores"
    words = f"`make reliability`, {environment['date'][:10]}, commit {str(environment['commit'])[:7]}, {where}"
    return f"{words}:\n\n{markdown_table(['', 'fault', 'asked for', 'asked', 'done', 'passed'], rows)}\n"


def _outcome(promise: Promise, found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["0", "not run"]
    done = f"{found['cases']:,}"
    short = found["cases"] < promise.asked
    return [
        f"{done}, fewer than asked" if short else done,
        "all" if not found["failed"] else f"{found['failed']} failed",
    ]


def details(results: Path) -> str:
    """Each promise with the tests that show it and what it does not cover."""
    record = read_record(results / RECORD) or {"promises": {}}
    parts = []
    for promise in PROMISES:
        files = sorted({test.partition("::")[0] for test in record["promises"].get(promise.id, {}).get("tests", [])})
        shown = ", ".join(f"`{file}`" for file in files) or "none in the record"
        limits = f"*Limits:* {promise.limits}"
        parts.append(f"**{promise.id}, {promise.name}.** {promise.promise} *Shown by* {shown}. {limits}\n")
    return "\n".join(parts)


def others() -> str:
    """The same faults elsewhere."""
    rows = [
        [f"{promise.id} {promise.name}", *(cell or _NOT_TRIED for cell in OTHERS[promise.id])]
        for promise in PROMISES
        if promise.id in OTHERS
    ]
    return markdown_table(["", *_OTHER_NAMES], rows) + "\n"
