"""A watermark keeps blocks free that the next prompt would fit: 12 of 255 here, and a prompt takes 10."""

from tests.e2e_vllm.load import Load
from tests.e2e_vllm.scenario import GENERATES, PRESSURE, Phase, Scenario

WATERMARK = Scenario(
    "watermark",
    (Phase("watermark", Load(40, 300, 80, exact=True), 80, PRESSURE, 1, fires="KVCachePressure"),),
    flags=(*GENERATES, "--watermark", "0.05"),
)
