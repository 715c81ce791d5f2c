import pytest

from kvpressure.capacity.parallel import Parallel, possible_tensor_parallel, stages
from tests.support.models import geometry


@pytest.mark.parametrize(
    ("layers", "pipeline", "counts"),
    [(32, 1, [32]), (32, 2, [16, 16]), (80, 3, [27, 27, 26]), (61, 2, [31, 30]), (62, 4, [15, 16, 16, 15])],
)
def test_stages_are_cut_as_vllm_cuts_them(layers: int, pipeline: int, counts: list[int]) -> None:
    found = stages(layers, pipeline)
    assert [len(stage) for stage in found] == counts
    assert [layer for stage in found for layer in stage] == list(range(layers))


def test_heads_say_among_how_many_gpus_a_model_can_be_divided() -> None:
    assert possible_tensor_parallel(geometry("qwen2.5-7b"))[:4] == [1, 2, 4, 28]
    assert possible_tensor_parallel(geometry("llama-3-8b")) == [1, 2, 4, 8, 16, 32]


def test_all_gpus_of_an_engine_are_counted() -> None:
    assert Parallel(tensor=4, pipeline=2, data=3).gpus == 24
