"""What clients of a simulated engine get, and how it is counted while the simulation runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvpressure.simulation.contexts import Contexts


@dataclass(frozen=True, slots=True)
class Outcome:
    """What clients get. Latencies are seconds from arrival to the last token, of answered requests.

    `goodput` is whole answers a second within the latency limit; `weighted_goodput` counts late ones too, each by the
    limit over its latency, so that late and later differ. `running` and `waiting` are means. `preempted_ratio` is
    preemptions per answer, `refused_ratio` a share of the requests sent today, `shortened_ratio` a share of answers.
    `hit_ratio` is of the tokens of requests admitted, those found in the cache: known of sessions only.
    """

    tokens_per_second: float
    goodput: float
    weighted_goodput: float
    latency_p95: float
    running: float
    waiting: float
    preempted_per_second: float
    preempted_ratio: float
    refused_ratio: float
    shortened_ratio: float
    answers_per_second: float
    latencies: tuple[float, ...] = ()
    """Seconds, in rising order."""
    steps_per_second: float = 0.0
    first_token_seconds: float | None = None
    """Mean seconds from arrival to first token."""
    hit_ratio: float | None = None
    hits_by_pool: tuple[float, ...] = ()
    """What caches of other sizes would have found of the same requests, for each size that was given."""

    def of_mean_server(self, busy_ratio: float) -> Outcome:
        """Return what the mean server gives where a share of them does this and the others have no clients."""
        rates = ("tokens_per_second", "goodput", "weighted_goodput", "running", "waiting", "preempted_per_second")
        return replace(self, **{name: busy_ratio * getattr(self, name) for name in (*rates, "answers_per_second")})


class Tally:
    """What is counted of a run once it is warm."""

    def __init__(self) -> None:
        self.counting = False
        self.answered = self.tokens = self.preempted = 0
        self.latencies: list[float] = []
        """Seconds of counted answers, and whether each was cut short."""
        self.first_tokens: list[float] = []
        self.shortened: list[bool] = []
        self._begun = self.running_seconds = self.waiting_seconds = 0.0
        self._waited = self._first_step = 0

    def begin(self, now: float, step: int) -> None:
        """Count from now on, when so many steps are done."""
        self.counting, self._begun, self._first_step = True, now, step

    def count_again(self, now: float, step: int, waiting: int) -> None:
        """Forget what was counted, and count from now on, when so many are waiting."""
        self.begin(now, step)
        self._waited = waiting
        self.tokens = self.preempted = 0
        self.running_seconds = self.waiting_seconds = 0.0
        for counted in (self.latencies, self.first_tokens, self.shortened):
            counted.clear()

    def go_on(self, seconds: float, waiting: int) -> None:
        """Let the queue grow for so many seconds more as it did since it was counted, `waiting` now.

        Of a queue in order, who is answered later has waited longer by what has come and was not answered.
        """
        grown, answered = max(0, waiting - self._waited), len(self.latencies)
        if not grown or not answered:
            return
        longer = seconds * grown / (answered + grown)
        self.latencies = [latency + longer for latency in self.latencies]
        self.first_tokens = [first_token + longer for first_token in self.first_tokens]
        self.waiting_seconds += seconds * grown
        self._waited = waiting

    def outcome(
        self, now: float, step: int, limit_seconds: float, refused_ratio: float, contexts: Contexts | None
    ) -> Outcome | None:
        """Return what was counted, where later answers than `limit_seconds` are late; None without an answer."""
        seconds = now - self._begun
        if not self.latencies or seconds <= 0:
            return None
        ordered = sorted(self.latencies)
        whole = [took for took, cut in zip(self.latencies, self.shortened, strict=True) if not cut]
        return Outcome(
            tokens_per_second=self.tokens / seconds,
            goodput=sum(took <= limit_seconds for took in whole) / seconds,
            weighted_goodput=sum(min(1.0, limit_seconds / took) for took in whole) / seconds,
            latency_p95=_quantile(ordered, 0.95),
            running=self.running_seconds / seconds,
            waiting=self.waiting_seconds / seconds,
            preempted_per_second=self.preempted / seconds,
            preempted_ratio=self.preempted / len(ordered),
            refused_ratio=refused_ratio,
            shortened_ratio=sum(self.shortened) / len(ordered),
            answers_per_second=len(ordered) / seconds,
            latencies=tuple(ordered),
            steps_per_second=(step - self._first_step) / seconds,
            first_token_seconds=sum(self.first_tokens) / len(self.first_tokens) if self.first_tokens else None,
            hit_ratio=None if contexts is None else contexts.hit_ratio,
            hits_by_pool=() if contexts is None else contexts.hits_by_pool,
        )


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
