"""Trials: short jobs of every row and column that decide, on the validation split, what its full jobs are run with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from transnormer.errors import ConfigError
from transnormer.experiments.experiment import TRIALS, Experiment, Selection, bare, job_name, key_of, split_override
from transnormer.experiments.job import Choice
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.table import NONE
from transnormer.markdown import markdown_table


class Trials(Experiment):
    """The trials of another experiment: its rows and columns, the `options` of a row as variants, a short `schedule`.

    They have one seed, whatever seeds the full jobs have: a row chooses once.
    """

    tables = ()

    def __init__(
        self,
        finals: Experiment,
        options: Callable[[str], Mapping[str, Sequence[str]]],
        schedule: Sequence[str],
        seed: int,
    ) -> None:
        self._finals, self._options, self._schedule, self.seed = finals, options, tuple(schedule), seed

    name = TRIALS

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"{self._finals.title}: trials"

    @property
    def setups(self) -> Mapping[str, str]:  # type: ignore[override]
        return self._finals.setups

    @property
    def guesses(self) -> Mapping[str, Mapping[str, float]]:  # type: ignore[override]
        return self._finals.guesses

    @property
    def relative_speeds(self) -> Mapping[str, Mapping[str, float]]:  # type: ignore[override]
        return self._finals.relative_speeds

    @property
    def rows(self) -> Sequence[str]:
        return self._finals.rows

    def columns(self, setup: str) -> Sequence[str]:
        return self._finals.columns(setup)

    def recipe(self, column: str, setup: str) -> str:
        return self._finals.recipe(column, setup)

    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        return self._finals.settings(row, column, selection)

    def variants(self, row: str, setup: str) -> Mapping[str, Sequence[str]]:
        return {name: [*settings, *self._schedule] for name, settings in self._options(row).items()}

    def data_name(self, column: str) -> str:
        return self._finals.data_name(column)

    def is_prepared_on_demand(self, column: str) -> bool:
        return self._finals.is_prepared_on_demand(column)

    def data_origin(self, column: str) -> str:
        return self._finals.data_origin(column)

    def folder(self, setup: str) -> str:
        return f"{self._finals.folder(setup)}-{TRIALS}"

    def page_file(self, results: Path) -> Path:
        return results / "README.md"

    def selection(self, finals: Selection) -> Selection:
        """What is asked for of the trials where these full jobs are: their own length stays, unless it is told anew."""
        decided = {key_of(text) for row in finals.rows for texts in self._options(row).values() for text in texts}
        if wrong := sorted(decided & {key_of(bare(override)) for override in finals.overrides}):
            raise ConfigError(
                f"{', '.join(wrong)}: trials decide this in the set-up '{finals.setup}'",
                hint="leave it out, or choose another --setup",
            )
        short = {key_of(text) for text in self._schedule}
        split = list(map(split_override, finals.overrides))
        for_all = [
            override
            for override, (named, _) in zip(finals.overrides, split, strict=True)
            if named != TRIALS and key_of(bare(override)) not in short
        ]
        return replace(finals, seeds=[self.seed], overrides=[*for_all, *(text for to, text in split if to == TRIALS)])

    def first_options(self, selection: Selection) -> dict[tuple[str, str], Choice]:
        """Some choice of every row and column: what else is wrong with full jobs is found before any trial."""
        firsts = {row: next(iter(self._options(row).items())) for row in selection.rows}
        return {
            (row, column): Choice(name, tuple(settings), {})
            for row, (name, settings) in firsts.items()
            for column in selection.columns
        }

    def choices(self, selection: Selection, results: Path) -> dict[tuple[str, str], Choice]:
        """Of every row and column all of whose trials have a record: the best on validation, of equals the first."""
        records, chosen = read_records(results), {}
        for row in selection.rows:
            options = self._options(row)
            for column in selection.columns:
                done = self._done(records, row, column)
                if len(done) == len(options):
                    best = best_on_validation(done)
                    scores = {name: record.valid_score for name, record in done.items()}
                    chosen[row, column] = Choice(best, tuple(options[best]), scores)
        return chosen

    def _done(self, records: Sequence[Record], row: str, column: str) -> dict[str, Record]:
        """The records of a row and column by the name of their option, in the order of the options."""
        by_name = {record.name: record for record in records}
        found = {name: by_name.get(job_name(row, column, self.seed, name)) for name in self._options(row)}
        return {name: record for name, record in found.items() if record}

    def page(self, records: Sequence[Record]) -> str:
        """What every row chose of what, by the score on the validation split; the chosen one is bold."""
        columns = list(self.columns(""))
        lines = []
        for row in self.rows:
            found = [self._done(records, row, column) for column in columns]
            if any(found):
                lines.append([row, *(self._cell(row, done) for done in found)])
        steps = sorted({record.steps for record in records})
        return (
            f"# {self.title}\n\nGenerated from the JSON files beside it; one file is one run. Score on the validation "
            f"split, schedules of {', '.join(f'{count:,}' for count in steps) or 'some'} steps, seed {self.seed}; what "
            "is bold was chosen for the full runs. No score on the test split has a part in it. Where not all trials "
            f"are finished, nothing is chosen yet.\n\n{markdown_table(['method', *columns], lines)}\n"
        )

    def _cell(self, row: str, found: Mapping[str, Record]) -> str:
        best = best_on_validation(found) if len(found) == len(self._options(row)) else None
        texts = [f"{name} {record.valid_score:.2f}" for name, record in found.items()]
        named = [f"**{text}**" if name == best else text for name, text in zip(found, texts, strict=True)]
        return "<br>".join(named) or NONE


def best_on_validation(records: Mapping[str, Record]) -> str:
    """The name of the best; one that diverged is worse than any other."""

    def worth(name: str) -> float:
        record = records[name]
        value = record.valid_score if record.higher_is_better else -record.valid_score
        return -math.inf if math.isnan(value) else value

    return max(records, key=worth)
