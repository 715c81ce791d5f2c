"""An encoder has no batch that lasts and no token to generate: its page shows 0 running while requests wait.

Long enough for an alert about its batch, which would fire after a minute and a half.
"""

from tests.e2e_vllm.load import Load
from tests.e2e_vllm.scenario import Phase, Scenario

EMBEDDING = Scenario(
    "embedding",
    (Phase("embedding", Load(48, 300, embeds=True), 120, frozenset({"healthy", "compute_bound"})),),
    model="embedding",
    flags=("--runner", "pooling", "--max-num-seqs", "32"),
)
