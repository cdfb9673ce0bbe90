"""What a shell offers after Tab where an argument is a name of ours: each function takes what was begun."""

from __future__ import annotations

from collections.abc import Iterable


def recipes(begun: str) -> list[str]:
    """The shipped recipes."""
    from transnormer.config.recipe import list_recipes

    return _that_begin(begun, list_recipes())


def overrides(begun: str) -> list[str]:
    """Every key, ready for its value."""
    from transnormer.config.keys import all_keys

    return _that_begin(begun, (f"{key}=" for key in all_keys()))


def explained(begun: str) -> list[str]:
    """What can be explained: keys, sections and recipes."""
    from transnormer.config.keys import all_keys, all_sections

    return _that_begin(begun, [*all_sections(), *all_keys(), *recipes("")])


def prepared(begun: str) -> list[str]:
    """The data that can be prepared by name."""
    from transnormer.data.corpora import corpus_names
    from transnormer.data.glue.spec import SPECS
    from transnormer.tasks.registry import TASKS

    lra = sorted(task for task in TASKS if task.startswith("lra/"))
    return _that_begin(begun, [*(name for name in corpus_names() if name != "text"), *lra, *SPECS])


def tables(begun: str) -> list[str]:
    """The tables and experiments of the paper, and all of them."""
    from transnormer.experiments.paper.contents import ALL, entries

    return _that_begin(begun, [*entries(), ALL])


def _that_begin(begun: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(begun)]
