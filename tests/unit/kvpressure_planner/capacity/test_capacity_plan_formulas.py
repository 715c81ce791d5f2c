"""Each calculation of a plan comes to the value beside it, and is written as people compute it."""

import pytest

from kvpressure.capacity.arithmetic import GIB, Step
from kvpressure.capacity.memory import Memory
from kvpressure.capacity.parallel import RefusedError
from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.capacity.capacity_plan import plan_model
from kvpressure_planner.capacity.case import PlannedTraffic
from tests.support.formulas import evaluate
from tests.support.models import MODELS, geometry

pytestmark = pytest.mark.exhaustive

EXACT = (
    "KV cache per token",
    "State per request",
    "max_num_seqs",
    "Would fit at p50",
    "Max input tokens",
    "KV pool in tokens",
)
CALCULATED = (*EXACT, "Memory for", "Weights", "Activations", "KV pool", "Pool for requests", "Memory missing")
LENGTHS = PlannedTraffic(4000, 800, prompt_p50=700, output_p50=120)


def steps(name: str, memory: Memory) -> tuple[Step, ...]:
    read = geometry(name) if name != "gpt2-xl" else geometry(name, dtype="float16")
    try:
        return plan_model(
            read, read.cost("auto", memory.tensor_parallel), memory, LENGTHS, load_thresholds(), limit=None
        ).steps
    except RefusedError:
        return ()


@pytest.mark.parametrize("name", sorted(path.stem for path in MODELS.glob("*.json")))
@pytest.mark.parametrize(("ranks", "stages", "data"), [(1, 1, 1), (2, 1, 1), (4, 2, 1), (16, 1, 2)])
def test_every_calculation_comes_to_the_value_beside_it(name: str, ranks: int, stages: int, data: int) -> None:
    memory = Memory((80 * GIB,), ranks, pipeline_parallel=stages, data_parallel=data)
    for step in steps(name, memory):
        if step.label.startswith(CALCULATED):
            # Sizes are shown with two digits behind the point; where they are not needed nothing is rounded.
            rounded = 0.02 * GIB if step.unit == "bytes" and not step.label.startswith(EXACT) else 0
            assert evaluate(step.formula) == pytest.approx(step.value, abs=rounded, rel=1e-9), step


def test_keys_and_values_are_written_as_people_compute_them() -> None:
    first = steps("llama-3-8b", Memory((80 * GIB,)))[0]
    assert (first.formula, first.value) == ("2 (K, V) x 32 layers x 8 KV heads x 128 x 2 B", 131_072)
    assert steps("llama-3-70b", Memory((80 * GIB,), 4))[0].formula == (
        "2 (K, V) x 80 layers x 8 KV heads / 4 GPUs x 128 x 2 B"
    )
