"""`AutoModel.from_pretrained` knows our models after `import transnormer`, at no cost before transformers is used.

transformers builds its Auto tables when `configuration_auto` and `modeling_auto` are first imported, which takes
seconds and needs torch. Instead of importing them, we enter our classes at the moment somebody else does. For this to
work no file of this folder may import `modeling_auto` (nor `transformers.modeling_layers`, which does) while it loads.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

_CONFIGURATION = "transformers.models.auto.configuration_auto"
_MODELING = "transformers.models.auto.modeling_auto"


def _register_config() -> None:
    from transformers import AutoConfig

    from transnormer.models.config import TransNormerConfig

    AutoConfig.register(TransNormerConfig.model_type, TransNormerConfig, exist_ok=True)


def _register_models() -> None:
    import transformers

    from transnormer.models import backbone, heads
    from transnormer.models.config import TransNormerConfig

    for auto, model in (
        (transformers.AutoModel, backbone.TransNormerModel),
        (transformers.AutoModelForCausalLM, heads.TransNormerForCausalLM),
        (transformers.AutoModelForMaskedLM, heads.TransNormerForMaskedLM),
        (transformers.AutoModelForSequenceClassification, heads.TransNormerForSequenceClassification),
    ):
        auto.register(TransNormerConfig, model, exist_ok=True)


_REGISTRATIONS: dict[str, Callable[[], None]] = {_CONFIGURATION: _register_config, _MODELING: _register_models}


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself; lets the usual finders load the two Auto modules and then registers our classes."""

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
    """Enter our classes into transformers' Auto tables now where these exist, else when they are first imported."""
    pending = [name for name in _REGISTRATIONS if name not in sys.modules]
    for name in _REGISTRATIONS:
        if name in sys.modules:
            _REGISTRATIONS[name]()
    if pending and not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
