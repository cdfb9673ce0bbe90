"""Find a recipe, one of those shipped by name or the user's own YAML file by path, and the recipes that it extends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transnormer.config.yaml_text import KeyPath, Lines, parse_yaml
from transnormer.errors import ConfigError, DataError, did_you_mean

SHIPPED = Path(__file__).resolve().parent.parent / "recipes"


@dataclass(frozen=True)
class Recipe:
    """A recipe as it was written: only what differs from the one it extends, or from the defaults."""

    name: str
    path: Path
    tree: dict[str, Any]
    lines: Lines

    def origin(self, path: KeyPath) -> str:
        """Where a key stands; one that is renamed while it is read stands on no line."""
        return f"{self.name}, line {self.lines[path]}" if path in self.lines else self.name


def list_recipes() -> list[str]:
    """Names of the shipped recipes, as `transnormer train` takes them; a file with _ is there to be extended only."""
    return sorted(_shipped_name(path) for path in SHIPPED.rglob("*.yaml") if not path.name.startswith("_"))


def about_recipe(name: str) -> str:
    """What a shipped recipe is for: its first comment line."""
    first = (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").strip()


def read_recipe(name: str | Path) -> Recipe:
    """Read a recipe by shipped name or by path; a ConfigError says what was not found or not well formed."""
    return _read(str(name), _find(str(name)))


def read_with_parents(name: str | Path) -> list[Recipe]:
    """A recipe and before it, in the order in which they are laid over each other, those that it extends."""
    chain = [read_recipe(name)]
    while (parent := chain[0].tree.pop("extends", None)) is not None:
        child = chain[0]
        if not isinstance(parent, str):
            raise ConfigError(
                f"extends: expected the name or path of one recipe; got {parent!r}, in {child.origin(('extends',))}",
                hint="write e.g. 'extends: lra/text'",
            )
        told = " extends ".join([recipe.name for recipe in reversed(chain)] + [parent])
        try:
            path = _find(parent, beside=child.path.parent)
        except ConfigError as error:
            raise ConfigError(f"{told}: {error.message}", error.hint) from error
        if any(path.resolve() == recipe.path.resolve() for recipe in chain):
            raise ConfigError(f"{told}: recipes cannot extend each other in a circle", "take one extends out")
        is_shipped = path.is_relative_to(SHIPPED)
        chain.insert(0, _read(_shipped_name(path) if is_shipped else str(path), path))
    return chain


def _shipped_name(path: Path) -> str:
    return path.relative_to(SHIPPED).with_suffix("").as_posix()


def _read(name: str, path: Path) -> Recipe:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from error
    except PermissionError as error:
        raise DataError.unreadable(path, error) from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    tree, lines = parse_yaml(text, name)
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{name}: a recipe is a mapping of keys, this is {_kind(tree)}", hint="write e.g. 'seed: 1' on a line"
        )
    return Recipe(name, path, tree, lines)


def _find(name: str, beside: Path = Path()) -> Path:
    """The file of a shipped name, or of a path from the folder it is meant from."""
    known = list_recipes()
    if name in known:
        return SHIPPED / f"{name}.yaml"
    path = beside / name
    try:
        if path.is_file():
            return path
        is_folder = path.is_dir()
    except OSError as error:  # e.g. a name too long for the file system
        raise ConfigError(f"recipe {name[:80]!r} is no file name", hint=did_you_mean(name[:80], known)) from error
    if is_folder:
        raise ConfigError(f"recipe '{name}' is a folder", hint="give a YAML file, or one of: " + ", ".join(known))
    if path.suffix in {".yaml", ".yml"}:
        near = next((shipped for shipped in known if path.with_suffix("").as_posix().endswith(shipped)), None)
        hint = f"the shipped recipe is called '{near}'" if near else "see `transnormer list recipes`"
        raise ConfigError(f"recipe file '{name}' does not exist", hint=hint)
    raise ConfigError(f"no recipe {name!r}", hint=did_you_mean(name, known) + " (or the path of a YAML file)")


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else f"the single value {value!r}"
