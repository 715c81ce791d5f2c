"""The tokenizer process's statistics: what `TokenizerManager.collect_metrics` observes, when and in which order."""

import importlib
from dataclasses import dataclass
from typing import Any

from tests.lab.clock import Clock
from tests.lab.messages import Ended, Outputs, SentRequest


@dataclass(slots=True)
class State:
    """What the process keeps of a request until it ends."""

    asked: SentRequest
    prefilling: bool = True
    first_token: float = 0.0
    last_token: float = 0.0
    told: int = 0


class FrontEnd:
    """What one tokenizer process knows of its requests, all of which stream."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        collectors = importlib.import_module("sglang.srt.observability.metrics_collector")
        self._labels = collectors.tokenizer_metric_labels()
        self._collector = collectors.TokenizerMetricsCollector(labels=self._labels)
        self.states: dict[str, State] = {}

    def expect(self, asked: SentRequest) -> None:
        """The process has taken the request; `Engine.add` hands it to the scheduler."""
        self.states[asked.name] = State(asked)

    def record(self, news: Outputs) -> list[Ended]:
        """The process reads one step's outputs."""
        return [ended for output in news.outputs if (ended := self._read(output)) is not None]

    def _read(self, output: Any) -> Ended | None:
        state, now = self.states.get(output.request_id), self._clock.now
        if state is None:
            return None
        asked, collector, new = state.asked, self._collector, len(output.new_token_ids)
        state.told += new
        if state.prefilling:
            state.prefilling, state.first_token = False, now
            collector.observe_time_to_first_token(self._labels, now - asked.arrived, stream=True)
        else:
            collector.observe_inter_token_latency(self._labels, now - state.last_token, new)
        state.last_token = now
        if output.finish_reason is None:
            return None
        self._count(state, output.req)
        del self.states[asked.name]
        return Ended(
            asked.name, state.told, now - asked.arrived, state.first_token - asked.arrived, output.finish_reason
        )

    def _count(self, state: State, req: Any) -> None:
        """A request has ended, as `observe_one_finished_request` counts it."""
        now, asked = self._clock.now, state.asked
        self._collector.observe_one_finished_request(
            self._labels,
            len(asked.tokens),
            state.told,
            req.cached_tokens,
            now - asked.arrived,
            has_grammar=False,
            cached_tokens_details={"device": req.cached_tokens_device, "host": 0},
            is_streaming=True,
            time_per_output_token=(now - state.first_token) / (state.told - 1) if state.told > 1 else None,
        )

    def give_up(self, name: str) -> State | None:
        """The client is gone: the process forgets the request; `abort` tells the scheduler."""
        state = self.states.pop(name, None)
        if state is not None:
            self._collector.observe_one_aborted_request(self._labels)
        return state
