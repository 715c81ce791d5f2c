"""vLLM's engine core and the statistics of its front end, with the model replaced by a formula for its time.

A step goes as in `vllm/v1/engine/core.py`: schedule, execute, update from the output. What is executed samples one
token for every request whose tokens are all computed, and more where drafts are accepted. The front end's part follows
`vllm/v1/engine/output_processor.py` and `async_llm.py`: what is counted when, and in which order.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.lab.clock import Clock
from tests.lab.config import accepted, kv_cache_config, tell_capacity, vllm_config
from tests.lab.connector import FakeConnector
from tests.lab.observe import Observer
from tests.lab.regime import Cost, Regime
from tests.lab.stubs import Blank, PoolingParams, SamplingParams

TOKEN: Final = 7
POOLED: Final = "an embedding"
EMPTY_STEP_SECONDS: Final = 0.02
"""A step that runs no model. vLLM sleeps 1 ms between them; the lab looks less often, which changes no gauge."""


@dataclass(slots=True)
class Asked:
    """One request as a client sends it. `output` tokens are wanted; a session's later pieces have the same name."""

    name: str
    tokens: list[int]
    output: int
    arrived: float
    adapter: int = 0
    priority: int = 0
    grammar: Any = None
    resumable: bool = False
    remote: bool = False
    images: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class State:
    """What the front end keeps of a request until it ends."""

    asked: Asked
    stats: Any
    prefilling: bool = True
    first_token: float | None = None
    told: int = 0


@dataclass(slots=True)
class Step:
    """What one step will do: the scheduler's decision, its seconds, and why requests wait meanwhile."""

    decision: Any
    seconds: float
    work_ratio: float
    reasons: Counter[str]
    running: int
    preempted: int


@dataclass(slots=True)
class Ended:
    """A request's end, as the client sees it."""

    name: str
    tokens: int
    seconds: float
    first_token_seconds: float | None
    reason: str


@dataclass(slots=True)
class Outputs:
    """One step's news on their way to the front end."""

    outputs: Sequence[Any]
    stats: Any
    timestamp: float = 0.0
    dropped: set[str] = field(default_factory=set)


class Engine:
    """One engine core with its logger. `install` of the clock and the stand-ins comes before the first one."""

    def __init__(self, regime: Regime, package: Path, clock: Clock) -> None:
        self._regime, self._clock = regime, clock
        self._rng = random.Random(f"{regime.name}/{regime.seed}")
        self.connector = FakeConnector(regime.transfer, clock) if regime.transfer else None
        flags = regime.flags
        role = {"producer": "kv_producer", "consumer": "kv_consumer", "offload": "kv_both"}
        config = vllm_config(flags, package, kv_role=role[regime.transfer.role] if regime.transfer else None)
        kv_config = kv_cache_config(flags)
        tell_capacity(config, kv_config)
        self._hasher = _hasher(flags.block_size) if flags.enable_prefix_caching else None
        self.scheduler = self._scheduler(config, kv_config)
        self.observer = Observer(self.scheduler, self.connector)
        self._stats = importlib.import_module("vllm.v1.metrics.stats")
        self._logger = importlib.import_module("vllm.v1.metrics.loggers").PrometheusStatLogger(config, [0])
        self._logger.log_engine_initialized()
        self._adapters = self._stats.LoRARequestStates(log_stats=True)
        self.states: dict[str, State] = {}
        self._images = 0

    def _scheduler(self, config: Any, kv_config: Any) -> Any:
        flags = self._regime.flags
        made = importlib.import_module("vllm.v1.core.sched.scheduler")
        vars(made).update(_doubles(self.connector, flags.encoder_budget, flags.encoder_cache))
        return made.Scheduler(
            config,
            kv_config,
            _Grammars(),
            log_stats=True,
            **accepted(made.Scheduler.__init__, block_size=flags.block_size, hash_block_size=flags.block_size),
        )

    # the front end's side

    def expect(self, asked: Asked) -> None:
        """The front end has taken the request; `add` hands it to the core."""
        self.states[asked.name] = State(asked, self._stats.RequestStateStats(arrival_time=asked.arrived))
        self._images += len(asked.images)

    def queued_tokens(self) -> int:
        """Prompt tokens of requests that have no output yet, as the front end counts them."""
        return sum(len(state.asked.tokens) for state in self.states.values() if state.prefilling)

    def refuse(self, reason: str) -> None:
        """A request was answered 503 for a queue limit."""
        self._logger.record_admission_rejection(reason)

    def sleep_state(self, *, asleep: bool) -> None:
        """What the logger says of sleeping."""
        self._logger.record_sleep_state(int(asleep), 1)

    def record(self, news: Outputs) -> list[Ended]:
        """The front end reads one step's outputs and publishes its statistics."""
        iteration = self._stats.IterationStats() if news.outputs else None
        ended = [end for output in news.outputs if (end := self._read(output, news.timestamp, iteration))]
        self._adapters.update_scheduler_stats(news.stats)
        self._logger.record(news.stats, iteration, self._looked_up())
        return ended

    def _looked_up(self) -> Any:
        """What the cache of processed images was asked since the last time; all images of the lab differ."""
        stats = self._stats.MultiModalCacheStats()
        if self._images:
            stats.record(self._images, 0)
        self._images = 0
        return stats

    def _read(self, output: Any, timestamp: float, iteration: Any) -> Ended | None:
        state = self.states.get(output.request_id)
        if state is None:
            return None
        asked, lora = state.asked, _adapter_name(state.asked.adapter)
        update = iteration.update_from_output
        named = {
            "output": output,
            "engine_core_timestamp": timestamp,
            "is_prefilling": state.prefilling,
            "prompt_len": len(asked.tokens),
            "req_stats": state.stats,
            "lora_states": self._adapters,
            "lora_name": lora,
        }
        update(**accepted(update, **named))
        state.told += len(output.new_token_ids)
        if state.prefilling:
            state.prefilling = False
            state.first_token = self._clock.now
        if output.finish_reason is None or asked.resumable:
            return None
        return self._ended(state, output.finish_reason, iteration)

    def _ended(self, state: State, reason: Any, iteration: Any) -> Ended:
        asked, finish = state.asked, iteration.update_from_finished_request
        named = {
            "finish_reason": reason,
            "request_id": asked.name,
            "num_prompt_tokens": len(asked.tokens),
            "max_tokens_param": None if self._pools else asked.output,
            "req_stats": state.stats,
        }
        finish(**accepted(finish, **named))
        self._adapters.request_finished(asked.name, _adapter_name(asked.adapter))
        del self.states[asked.name]
        first = None if state.first_token is None else state.first_token - asked.arrived
        return Ended(asked.name, state.told, self._clock.now - asked.arrived, first, str(reason))

    def give_up(self, name: str) -> State | None:
        """The client is gone: the front end forgets the request; `abort` tells the core."""
        state = self.states.pop(name, None)
        if state is not None:
            self._adapters.request_finished(name, _adapter_name(state.asked.adapter))
        return state

    # the core's side

    @property
    def _pools(self) -> bool:
        return self._regime.flags.runner == "pooling"

    def add(self, asked: Asked) -> None:
        """The core takes a request into its queue."""
        request = importlib.import_module("vllm.v1.request").Request
        adapter = asked.adapter
        named = {
            "request_id": asked.name,
            "prompt_token_ids": asked.tokens,
            "sampling_params": None if self._pools else SamplingParams(asked.output, structured_outputs=asked.grammar),
            "pooling_params": PoolingParams() if self._pools else None,
            "eos_token_id": None,
            "arrival_time": asked.arrived,
            "lora_request": Blank(lora_int_id=adapter, lora_name=_adapter_name(adapter), adapter_id=adapter)
            if adapter
            else None,
            "priority": asked.priority,
            "block_hasher": self._hasher,
            "resumable": asked.resumable,
            "mm_features": [_image(asked.name, number, *image) for number, image in enumerate(asked.images)] or None,
        }
        if asked.remote and self.connector is not None:
            self.connector.remote.add(asked.name)
        made = request(**accepted(request.__init__, **named))
        if asked.remote:
            made.kv_transfer_params = {"do_remote_prefill": True}
        self.scheduler.add_request(made)

    def abort(self, names: Sequence[str]) -> list[str]:
        """The core ends requests; the names of those it had."""
        status = importlib.import_module("vllm.v1.request").RequestStatus.FINISHED_ABORTED
        had = [name for name in names if name in self.scheduler.requests]
        self.scheduler.finish_requests(had, status)
        for name in had:
            self.observer.forget(name)
        return had

    def aborted(self, names: Sequence[str]) -> Outputs:
        """What the core sends when it ends requests on its own, as `/pause` does."""
        engine = importlib.import_module("vllm.v1.engine")
        made = [engine.EngineCoreOutput(name, [], finish_reason=engine.FinishReason.ABORT) for name in names]
        return Outputs(made, None, self._clock.now)

    def has_work(self) -> bool:
        """Whether the core would make a step."""
        return bool(self.scheduler.has_requests())

    def present(self) -> bool:
        """Whether any request is in the core that does not just wait for its client."""
        waiting = (request for request in self.observer.waiting() if request.status.name != "WAITING_FOR_STREAMING_REQ")
        return bool(self.scheduler.running) or next(waiting, None) is not None

    def schedule(self) -> Step:
        """Decide the next step."""
        self.observer.before()
        decision = self.scheduler.schedule()
        scheduled = decision.num_scheduled_tokens
        seconds, ratio = self._seconds(scheduled)
        reasons = self.observer.reasons(decision.total_num_scheduled_tokens)
        return Step(decision, seconds, ratio, reasons, len(self.scheduler.running), self.observer.preempted)

    def _seconds(self, scheduled: dict[str, int]) -> tuple[float, float]:
        if not scheduled:
            return EMPTY_STEP_SECONDS, 0.0
        cost, most = self._regime.cost, 1 + self._regime.flags.num_speculative_tokens
        requests = self.scheduler.requests
        decoding = sum(count <= most for count in scheduled.values())
        prefill = sum(count for count in scheduled.values() if count > most)
        context = sum(requests[name].num_computed_tokens for name in scheduled)
        work = _work_seconds(cost, prefill, decoding, context)
        return cost.step_seconds + work, work / (cost.step_seconds + work)

    def finish(self, step: Step) -> Outputs:
        """The model has run: its output goes back into the scheduler, whose news go to the front end."""
        outputs = importlib.import_module("vllm.v1.outputs")
        names = list(step.decision.num_scheduled_tokens)
        drafts = step.decision.scheduled_spec_decode_tokens
        sampled = [self._sampled(name, len(drafts.get(name, ()))) for name in names]
        pooled = [POOLED if tokens else None for tokens in sampled] if self._pools else None
        made = outputs.ModelRunnerOutput(
            **accepted(
                outputs.ModelRunnerOutput,
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[[] for _ in names] if self._pools else sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=pooled or [],
                kv_connector_output=self.connector.poll() if self.connector else None,
            )
        )
        sent = self.scheduler.update_from_output(step.decision, made)
        if self._regime.flags.num_speculative_tokens:
            self._draft([name for name, tokens in zip(names, sampled, strict=True) if tokens])
        (news,) = sent.values() if sent else (None,)
        if news is None:
            return Outputs((), None, self._clock.now)
        for output in news.outputs:
            if output.finish_reason is not None:
                self.observer.forget(output.request_id)
        return Outputs(news.outputs, news.scheduler_stats, news.timestamp)

    def _sampled(self, name: str, drafted: int) -> list[int]:
        request = self.scheduler.requests.get(name)
        if request is None or request.num_computed_tokens < request.num_tokens:
            return []
        right = 0
        while right < drafted and self._rng.random() < self._regime.cost.accepted_ratio:
            right += 1
        return [TOKEN] * (right + 1)

    def _draft(self, names: list[str]) -> None:
        drafts = [[TOKEN] * self._regime.flags.num_speculative_tokens for _ in names]
        made = importlib.import_module("vllm.v1.outputs").DraftTokenIds(req_ids=names, draft_token_ids=drafts)
        self.scheduler.update_draft_token_ids(made)

    def pause(self, state: str) -> None:
        """PAUSED_ALL, PAUSED_NEW or UNPAUSED."""
        names = importlib.import_module("vllm.v1.core.sched.interface").PauseState
        self.scheduler.set_pause_state(names[state])


class _Grammars:
    """`StructuredOutputManager`: every token fits every grammar."""

    def accept_tokens(self, *_: object) -> bool:
        return True

    def should_advance(self, _: object) -> bool:
        return False

    def validate_tokens(self, _: object, tokens: list[int]) -> list[int]:
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


def _work_seconds(cost: Cost, prefill: int, decoding: int, context: int) -> float:
    return (
        prefill * cost.prefill_token_seconds + decoding * cost.sequence_seconds + context * cost.context_token_seconds
    )


def _adapter_name(adapter: int) -> str | None:
    return f"adapter-{adapter}" if adapter else None


def _hasher(block_size: int) -> Any:
    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    utils.init_none_hash(_hash)
    return utils.get_request_block_hasher(block_size, _hash)


def _hash(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def _doubles(connector: FakeConnector | None, encoder_budget: int, encoder_cache: int) -> dict[str, Any]:
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


def _image(name: str, number: int, offset: int, length: int) -> Any:
    position = Blank(
        offset=offset,
        length=length,
        get_num_embeds=lambda: length,
        get_embeds_indices_in_range=lambda begin, end: (begin, end),
    )
    identifier = f"{name}-{number}"
    return Blank(mm_position=position, identifier=identifier, mm_hash=identifier, modality="image")
