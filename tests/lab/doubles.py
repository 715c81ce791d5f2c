"""What vLLM's scheduler is handed and calls: grammars, a connector's factory, an encoder's budget, images, hashes."""

import hashlib
import importlib
import pickle
from collections.abc import Sequence
from typing import Any

from tests.lab.clock import Clock
from tests.lab.connector import FakeConnector
from tests.lab.stubs import Blank


class Grammars:
    """`StructuredOutputManager`: every token fits every grammar."""

    def accept_tokens(self, *_: object) -> bool:
        """The output is a sentence of the grammar so far."""
        return True

    def should_advance(self, _: object) -> bool:
        """No grammar has a state that tokens would move."""
        return False

    def validate_tokens(self, _: object, tokens: list[int]) -> list[int]:
        """Those that fit: all."""
        return tokens

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class Grammar:
    """A request's grammar: compiled at `ready`, None before. A plain object, because vLLM writes attributes to it."""

    def __init__(self, clock: Clock, ready: float) -> None:
        self._clock, self._ready = clock, ready

    @property
    def grammar(self) -> object | None:
        """What the scheduler asks for."""
        return self if self._clock.now >= self._ready else None


def names_of_the_scheduler(connector: FakeConnector | None, encoder_budget: int, encoder_cache: int) -> dict[str, Any]:
    """Names in the scheduler's module that came from stood-in ones and have to do something."""

    class Factory:
        """`KVConnectorFactory`."""

        @staticmethod
        def create_connector(*_: object, **__: object) -> FakeConnector | None:
            return connector

    class Budget:
        """`MultiModalBudget`."""

        encoder_compute_budget = encoder_budget
        encoder_cache_size = encoder_cache
        mm_max_toks_per_item: dict[str, int] = {}  # noqa: RUF012 - as vLLM has it

        def __init__(self, *_: object, **__: object) -> None:
            pass

    return {"KVConnectorFactory": Factory, "MultiModalBudget": Budget, "get_mm_features_in_window": _in_window}


def _in_window(features: Sequence[Any], start: int, end: int) -> tuple[int, int]:
    """Indices of the first image that ends after `start`, and of the first that begins at `end` or later."""
    first = sum(feature.mm_position.offset + feature.mm_position.length <= start for feature in features)
    return first, sum(feature.mm_position.offset < end for feature in features)


def image(name: str, number: int, offset: int, length: int) -> Any:
    """One image of the request `name`: `length` embeddings from the token `offset` on."""
    position = Blank(
        offset=offset,
        length=length,
        get_num_embeds=lambda: length,
        get_embeds_indices_in_range=lambda begin, end: (begin, end),
    )
    identifier = f"{name}-{number}"
    return Blank(mm_position=position, identifier=identifier, mm_hash=identifier, modality="image")


def block_hasher(block_size: int) -> Any:
    """vLLM's own, with SHA-256 of a pickle."""
    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    utils.init_none_hash(_hash)
    return utils.get_request_block_hasher(block_size, _hash)


def _hash(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def adapter_name(adapter: int) -> str | None:
    """What a LoRA adapter is called; None for 0, which is none."""
    return f"adapter-{adapter}" if adapter else None
