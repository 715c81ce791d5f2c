import pytest

from kvpressure.capacity.arithmetic import GIB
from kvpressure.capacity.memory import Memory, weights_step
from kvpressure.capacity.pool import TokenPool
from tests.support.models import geometry


def test_weights_of_a_pipeline_are_those_of_its_fullest_stage() -> None:
    model = geometry("llama-3.1-405b")
    whole, halves = (weights_step(model, Memory((80e9,), 8, pipeline_parallel=count)).value for count in (1, 2))
    assert whole / 2 <= halves < 0.51 * whole


@pytest.mark.parametrize(("step", "gib"), [(4096, 20.0), (0, 16.97)])
def test_a_pool_logged_in_tokens_has_its_size_where_the_tokens_of_a_step_are_known(step: int, gib: float) -> None:
    # vLLM 0.33 makes 212,243 tokens of 20 GiB, with 4,096 tokens in flight (two steps of 2,048).
    cost = geometry("gemma-3-27b").cost("auto", 1)
    assert TokenPool(212_243).for_model(cost, 131_072, step).size_bytes / GIB == pytest.approx(gib, rel=0.002)
