"""Imports vLLM's scheduler without what it drags along: torch, transformers, pydantic and most of vLLM are stand-ins.

A short list of vLLM's modules is read from the unpacked wheel. Whatever else they import is a module that has every
name: a name that starts with a capital is a class that can be subclassed, called, combined in type hints; any other is
an object that answers calls with nothing of use, or with its argument when used as a decorator. Where a stand-in has to
do something, `_fill` says what.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any, Final

STOOD_IN: Final = frozenset({"vllm", "torch", "transformers", "pydantic", "numpy", "cachetools"})
REAL_PACKAGES: Final = ("vllm.v1.core",)
REAL: Final = frozenset(
    f"vllm.{name}"
    for name in (
        "exceptions",
        "utils.math_utils",
        "utils.mem_constants",
        "v1",
        "v1.engine",
        "v1.hisparse",
        "v1.hisparse.block_pool",
        "v1.hisparse.layout",
        "v1.kv_cache_interface",
        "v1.kv_cache_layout",
        "v1.kv_cache_spec_registry",
        "v1.metrics",
        "v1.metrics.buckets",
        "v1.metrics.cache_hit_source",
        "v1.metrics.loggers",
        "v1.metrics.prometheus",
        "v1.metrics.stats",
        "v1.metrics.utils",
        "v1.outputs",
        "v1.request",
        "v1.spec_decode",
        "v1.spec_decode.metrics",
    )
)


class _StandInType(type):
    """Classes that have every attribute, and can stand in type hints."""

    def __getattr__(cls, name: str) -> Any:
        if _dunder(name):
            raise AttributeError(name)
        made = _StandInType(name, (StandIn,), {})
        setattr(cls, name, made)
        return made

    def __or__(cls, _: object) -> Any:
        return cls

    __ror__ = __or__

    def __getitem__(cls, _: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class StandIn(metaclass=_StandInType):
    """An object that answers everything with another one, and is false."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __class_getitem__(cls, _: object) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if _dunder(name):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """As a decorator it returns what it decorates."""
        return args[0] if len(args) == 1 and callable(args[0]) and not named else StandIn()

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __bool__(self) -> bool:
        return False


class Blank(types.SimpleNamespace):
    """What is set, and None for every other attribute: how the lab writes vLLM's configuration objects."""

    def __getattr__(self, name: str) -> None:
        if _dunder(name):
            raise AttributeError(name)


class _StandInModule(types.ModuleType):
    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if _dunder(name):
            raise AttributeError(name)
        made: Any = StandIn()
        if not name.isupper() and (name[0].isupper() or name in {"dtype", "ndarray"}):
            made = _StandInType(name, (StandIn,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Environment(_StandInModule):
    """`vllm.envs`: every switch is off."""

    def __getattr__(self, name: str) -> Any:
        if _dunder(name):
            raise AttributeError(name)
        return False


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what begins with one of `roots`: in the unpacked `package` if it is `real` or in one of `packages`, else as
    a stand-in.
    """

    def __init__(self, package: Path, roots: Set[str], real: Set[str], packages: Sequence[str]) -> None:
        self._package, self.roots, self._real, self._packages = package, roots, real, packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name.split(".", maxsplit=1)[0] not in self.roots:
            return None
        real = self._file(name)
        if real is None:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        inside = [str(real.parent)] if real.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, real, submodule_search_locations=inside)

    def _file(self, name: str) -> Path | None:
        within = any(name == whole or name.startswith(f"{whole}.") for whole in self._packages)
        if name not in self._real and not within:
            return None
        at = self._package.joinpath(*name.split(".")[1:])
        return next((file for file in (at / "__init__.py", at.with_suffix(".py")) if file.exists()), None)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return (_Environment if spec.name == "vllm.envs" else _StandInModule)(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


class SamplingParams(Blank):
    """What a client asks for. The lab's requests answer exactly `max_tokens` tokens."""

    def __init__(self, max_tokens: int, **more: Any) -> None:
        super().__init__(
            max_tokens=max_tokens, min_tokens=0, n=1, skip_reading_prefix_cache=False, all_stop_token_ids=set(), **more
        )


class PoolingParams(Blank):
    """What a client of an embedding model asks for."""

    def __init__(self) -> None:
        super().__init__(skip_reading_prefix_cache=False)


def install(package: Path, more: Set[str] = frozenset()) -> None:
    """From now on `import vllm` means the wheel unpacked at `package`, `more` modules of it too. Once per process."""
    sys.meta_path.insert(0, Finder(package, STOOD_IN, REAL | more, REAL_PACKAGES))
    _fill()


def _fill() -> None:
    """What the scheduler and its metrics ask of the modules that are stood in for."""
    set_names("vllm.logger", init_logger=lambda _: StandIn())
    set_names("vllm.v1.utils", ConstantList=lambda items: items, tensor_data=lambda tensor: tensor)
    set_names("vllm.v1.utils", record_function_or_nullcontext=lambda *_: contextlib.nullcontext())
    set_names("vllm.utils", length_from_prompt_token_ids_or_embeds=lambda ids, _: len(ids))
    set_names("vllm.utils.torch_utils", get_dtype_size=lambda _: 2)
    set_names("vllm.sampling_params", SamplingParams=SamplingParams)
    set_names("vllm.pooling_params", PoolingParams=PoolingParams)
    set_names("vllm.v1.structured_output.request", StructuredOutputRequest=_GrammarOf)
    set_names("vllm.distributed.kv_events", EventPublisherFactory=_Nothing)
    set_names("torch", dtype=type("dtype", (), {}), Tensor=type("Tensor", (), {}), float32="float32")
    set_names("vllm.config", get_current_vllm_config_or_none=lambda: None)


class _GrammarOf:
    """`StructuredOutputRequest`: the lab hands its own grammar objects in."""

    def __new__(cls, sampling_params: Any = None, *_: object, **__: object) -> Any:
        return cls.from_sampling_params(sampling_params)

    @staticmethod
    def from_sampling_params(params: Any) -> Any:
        return None if params is None else params.structured_outputs


class _Nothing:
    @staticmethod
    def create(*_: object, **__: object) -> None:
        return None


def set_names(module: str, **names: Any) -> None:
    """Give a module that is stood in for these names."""
    for name, value in names.items():
        setattr(importlib.import_module(module), name, value)


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
