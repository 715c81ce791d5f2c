"""Which queries have data in which phase of the demo. A query that is not named has data in all of them."""

from typing import Final

from tests.dashboards.boards import BoardQuery

PHASES: Final = ("idle", "healthy", "building", "collapsed", "recovered")

WITH_REQUESTS: Final = PHASES[1:]
WITH_A_BASELINE: Final = PHASES[3:]
RECORDED: Final = PHASES[1:]
"""Recording rules run once a minute, and the idle phase is shorter."""

IN: Final[dict[str, tuple[str, ...]]] = {
    # fleet
    **dict.fromkeys(
        (
            *("Engines", "Under KV cache pressure", "Requests waiting", "Generated tokens/s"),
            *("Tokens/s lost to pressure", "Engines by cause", "Engines under KV cache pressure"),
            *("KV pressure score of the worst engine", "KV cache in use", "Tokens/s generated and lost to pressure"),
            *("Tokens/s lost to pressure, by namespace and model", "Demand", "Preemptions"),
            *("Memory-high-compute-low score of the worst engine", "Hottest replica above the median"),
            *("Time to first token of the slowest engine", "Time between tokens of the slowest engine"),
        ),
        RECORDED,
    ),
    "Latency inflation of the worst engine": WITH_A_BASELINE,
    "Worst engines/F": WITH_REQUESTS,
    **dict.fromkeys(("Worst engines/G", "Worst engines/H", "Worst engines/I"), WITH_REQUESTS),
    # engine
    **dict.fromkeys(
        (
            *("Time to first token, p95", "Time between tokens, p95", "Cache turnover"),
            *(
                "Effective batch against demand/D",
                "Latency against healthy",
                "Free KV cache/B",
                "Effective batch against demand/B",
            ),
            *("Effective batch against demand/C", "p95 latency", "p95 time between tokens"),
            *("Latency against the healthy baseline", "Prompt length", "requested max_tokens", "Output length"),
        ),
        WITH_REQUESTS,
    ),
    # capacity
    **dict.fromkeys(
        (
            *("KV tokens per request", "Prompt and output, p95", "Requests that fit, and requests allowed/B"),
            *("Requests that fit, and requests allowed/C", "Sequences left, per replica", "Headroom by replica/C"),
            *("Headroom by replica/F", "Burstiness", "Throughput plateau", "p95 prompt length over two weeks"),
            "Effective batch p95 over two weeks",
        ),
        WITH_REQUESTS,
    ),
    # Once it has been healthy for long enough, something tells what is lost.
    "Tokens lost": WITH_A_BASELINE,
    "Tokens/s lost": WITH_A_BASELINE,
    "Autoscalers": RECORDED,
    "Prefix cache hit ratio/A": PHASES[2:],
    "Alert": WITH_A_BASELINE,
    "New engine": PHASES[:2],
    "Prompt length over two weeks": PHASES[3:],
    "Output length over two weeks": PHASES[3:],
    # What a demo on a machine without Kubernetes does not have.
    **dict.fromkeys(
        (
            *("Limits now and recommended/C", "Restarts", "Log events by kind", "Kubernetes events"),
            *("Last container terminations", "CPU pressure and throttling", "Restart", "Log"),
            *("Kubernetes event", "KV memory per request", "Requests that fit, and requests allowed/A"),
            *("Safe over allowed concurrency", "Headroom by replica/E", "Limits declared"),
            "Cause detail over time",  # pressure that a small pool explains has no kind
            *(
                "GPU activity: SM, tensor cores, DRAM",
                "Overflow that siblings have room for",
                *("Replicas that do not serve", "Requests that failed", "Versions/A"),
                "Prefix cache hit ratio/B",
                "Prefix cache hit ratio/C",
            ),
        ),
        (),
    ),
}
"""By panel title, or panel title and letter of the query. What is () here has data in the fleet beside the demo."""


def phases(query: BoardQuery) -> tuple[str, ...]:
    """The phases in which a query must have data, for the demo's engine."""
    return IN.get(f"{query.panel}/{query.ref}", IN.get(query.panel, PHASES))
