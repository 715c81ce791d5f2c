"""Three adapters and one slot: requests for the two that are not in the batch are deferred."""

from tests.e2e_vllm.environment import ADAPTERS
from tests.e2e_vllm.load import Load
from tests.e2e_vllm.scenario import GENERATES, Phase, Scenario

LORA = Scenario(
    "lora",
    (
        Phase(
            *("lora", Load(24, 50, 100, models=ADAPTERS), 75, frozenset({"deferred"}), 1),
            details=frozenset({"lora_slots"}),
        ),
    ),
    flags=(
        *(*GENERATES, "--enable-lora", "--max-loras", "1", "--max-lora-rank", "8", "--lora-modules"),
        *(f"{name}={{models}}/adapters/{name}" for name in ADAPTERS),
    ),
)
