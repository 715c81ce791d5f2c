"""What one rank has counted since the server started: the numbers behind its page."""

from __future__ import annotations

from collections import Counter

from bench.simulator import histograms as bounds
from bench.simulator.histograms import Histogram
from bench.simulator.request import Request


class RankStats:
    """Counters by key, histograms by key, and the gauges as of the last completed step."""

    def __init__(self, max_model_len: int) -> None:
        tokens = bounds.one_two_five(max_model_len)
        self.counters: Counter[str] = Counter()
        self.running = 0
        self.waiting = 0
        self.usage_ratio = 0.0
        self.histograms = {
            "prompt": Histogram(tokens),
            "generation": Histogram(tokens),
            "iteration": Histogram(bounds.ITERATION_TOKENS),
            "params_n": Histogram(bounds.PARAMS_N),
            "max_tokens": Histogram(tokens),
            "prefill_computed": Histogram(tokens),
            "ttft": Histogram(bounds.TTFT_SECONDS),
            "inter_token": Histogram(bounds.TOKEN_SECONDS),
            "per_output_token": Histogram(bounds.TOKEN_SECONDS),
            "preemptions": Histogram(bounds.PREEMPTIONS),
            **{key: Histogram(bounds.REQUEST_SECONDS) for key in ("e2e", "queue", "inference", "prefill", "decode")},
        }

    def admitted(self, request: Request) -> None:
        """A request's first admission looked up its prompt; vLLM does not count what a resumed one finds."""
        self.counters["prefix_queries"] += request.prompt
        self.counters["prefix_hits"] += request.hit_tokens

    def first_token(self, request: Request, t: float) -> None:
        """The prompt counts as processed, and TTFT is known, when the first token is out."""
        self.histograms["ttft"].observe(t - request.arrived)
        self.counters["prompt_tokens"] += request.prompt
        self.counters["prompt_cached"] += request.hit_tokens
        self.counters["prompt_computed"] += request.prompt - request.hit_tokens

    def finished(self, request: Request, t: float) -> None:
        """Everything vLLM observes only when a request ends (times: queued, admitted, first and last token)."""
        self.counters[f"finished_{request.reason}"] += 1
        first = t if request.first_token is None else request.first_token
        admitted = t if request.admitted is None else request.admitted
        decode = max(0.0, t - first)
        observed = {
            "prompt": request.prompt,
            "generation": request.generated,
            "params_n": 1,
            "max_tokens": request.max_tokens,
            "prefill_computed": request.prompt - request.hit_tokens,
            "preemptions": request.preemptions,
            "e2e": t - request.arrived,
            "queue": admitted - request.queued,
            "inference": t - admitted,
            "prefill": first - admitted,
            "decode": decode,
            "per_output_token": decode / (request.generated - 1) if request.generated > 1 else 0.0,
        }
        for key, value in observed.items():
            self.histograms[key].observe(value)
