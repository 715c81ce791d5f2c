"""The statistics of vLLM's front end: what is counted when, and in which order.

As in `vllm/v1/engine/output_processor.py` and `async_llm.py`.
"""

import importlib
from dataclasses import dataclass
from typing import Any

from tests.lab.clock import Clock
from tests.lab.config import accepted
from tests.lab.doubles import adapter_name
from tests.lab.messages import Ended, Outputs, SentRequest


@dataclass(slots=True)
class State:
    """What the front end keeps of a request until it ends."""

    asked: SentRequest
    stats: Any
    prefilling: bool = True
    first_token: float | None = None
    told: int = 0


class FrontEnd:
    """What one front end knows of its requests, and its logger. `pools`: embeddings are asked for, no tokens."""

    def __init__(self, config: Any, clock: Clock, *, pools: bool) -> None:
        self._clock, self._pools = clock, pools
        self._stats = importlib.import_module("vllm.v1.metrics.stats")
        self._logger = importlib.import_module("vllm.v1.metrics.loggers").PrometheusStatLogger(config, [0])
        self._logger.log_engine_initialized()
        self._adapters = self._stats.LoRARequestStates(log_stats=True)
        self.states: dict[str, State] = {}
        self._images = 0

    def expect(self, asked: SentRequest) -> None:
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
        asked, lora = state.asked, adapter_name(state.asked.adapter)
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
        self._adapters.request_finished(asked.name, adapter_name(asked.adapter))
        del self.states[asked.name]
        first = None if state.first_token is None else state.first_token - asked.arrived
        return Ended(asked.name, state.told, self._clock.now - asked.arrived, first, str(reason))

    def give_up(self, name: str) -> State | None:
        """The client is gone: the front end forgets the request; `abort` tells the core."""
        state = self.states.pop(name, None)
        if state is not None:
            self._adapters.request_finished(name, adapter_name(state.asked.adapter))
        return state
