"""A watermark keeps blocks free that the next prompt would fit.

12 of 255 blocks here; a request takes 10 from its first token to its last, so 24 run, 15 blocks stay free, and nobody
is preempted.
"""

from tests.e2e_vllm.load import Load
from tests.e2e_vllm.scenario import PRESSURE, Phase, Scenario

WATERMARK = Scenario(
    "watermark",
    (Phase("watermark", Load(40, 1160, 110, exact=True), 80, PRESSURE, 1, fires="KVPressureCacheTooSmall"),),
    flags=(
        *("--max-model-len", "4096", "--max-num-seqs", "32"),
        *("--block-size", "128", "--num-gpu-blocks-override", "256", "--watermark", "0.05"),
    ),
)
