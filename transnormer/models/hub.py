"""How transformers' Auto classes find our models, with and without `import transnormer`.

A saved folder names, in `auto_map` of its config.json, a file that lies beside it and imports this package: that serves
`from_pretrained(folder, trust_remote_code=True)` where nobody has imported us, as in lm-eval.

After `import transnormer` no such file is needed or read, and that costs nothing before transformers is used: it builds
its Auto tables when `configuration_auto` and `modeling_auto` are first imported, which takes seconds and needs torch.
Instead of importing them, we enter our classes at the moment somebody else does. For this to work no file of this
folder may import `modeling_auto` (nor `transformers.modeling_layers`, which does) while it loads.

In the same way `peft`, once it is imported, learns which layers a LoraConfig without `target_modules` means.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

# The Auto classes and ours; a pair classifier has none.
AUTO_MODELS = {
    "AutoModel": "TransNormerModel",
    "AutoModelForCausalLM": "TransNormerForCausalLM",
    "AutoModelForMaskedLM": "TransNormerForMaskedLM",
    "AutoModelForSequenceClassification": "TransNormerForSequenceClassification",
}
_LOADER = "modeling_transnormer"
AUTO_MAP = {auto: f"{_LOADER}.{name}" for auto, name in {"AutoConfig": "TransNormerConfig", **AUTO_MODELS}.items()}
_LOADER_SOURCE = '''"""Where transformers finds the classes of the model in this folder: in the package transnormer."""

try:
    from transnormer import (
        TransNormerConfig,
        TransNormerForCausalLM,
        TransNormerForMaskedLM,
        TransNormerForSequenceClassification,
        TransNormerModel,
    )
except ModuleNotFoundError as error:
    if error.name != "transnormer":
        raise
    raise ImportError("this model needs the package transnormer: run `pip install .` in a checkout of it") from error
'''

_CONFIGURATION = "transformers.models.auto.configuration_auto"
_MODELING = "transformers.models.auto.modeling_auto"
_PEFT = "peft.utils.constants"
# Queries and values, as peft has it for most models, under every name that a mixer gives them.
_LORA_TARGETS = ["q_proj", "v_proj", "qk_proj", "base_proj", "value_proj"]


def _register_config() -> None:
    from transformers import AutoConfig

    from transnormer.models.config import TransNormerConfig

    AutoConfig.register(TransNormerConfig.model_type, TransNormerConfig, exist_ok=True)


def _register_models() -> None:
    import transformers

    from transnormer.models import heads
    from transnormer.models.config import TransNormerConfig

    for auto, name in AUTO_MODELS.items():
        getattr(transformers, auto).register(TransNormerConfig, getattr(heads, name), exist_ok=True)


def _register_lora_targets() -> None:
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS

    from transnormer.models.config import TransNormerConfig

    TARGETS.setdefault(TransNormerConfig.model_type, _LORA_TARGETS)


_REGISTRATIONS: dict[str, Callable[[], None]] = {
    _CONFIGURATION: _register_config,
    _MODELING: _register_models,
    _PEFT: _register_lora_targets,
}


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself; lets the usual finders load the modules above and then registers what is ours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _REGISTRATIONS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader, _REGISTRATIONS[fullname])
        return spec


class _RegisteringLoader(importlib.abc.Loader):
    """The module's own loader, followed by a registration."""

    def __init__(self, loader: importlib.abc.Loader, register: Callable[[], None]) -> None:
        self._loader = loader
        self._register = register

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._register()


def register_auto_classes() -> None:
    """Enter what is ours into the tables of transformers and peft that exist, into others when they are imported."""
    pending = [name for name in _REGISTRATIONS if name not in sys.modules]
    for name in _REGISTRATIONS:
        if name in sys.modules:
            _REGISTRATIONS[name]()
    if pending and not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def write_loader(folder: Path) -> None:
    """Write the file that `AUTO_MAP` names."""
    (folder / f"{_LOADER}.py").write_text(_LOADER_SOURCE, encoding="utf-8")
