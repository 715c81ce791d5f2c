"""Every scenario, in the order of a whole run."""

from tests.e2e_vllm.scenarios.embedding import EMBEDDING
from tests.e2e_vllm.scenarios.json_flood import JSON_FLOOD
from tests.e2e_vllm.scenarios.loads import LOADS
from tests.e2e_vllm.scenarios.lora import LORA
from tests.e2e_vllm.scenarios.sessions import ROOM, SESSIONS
from tests.e2e_vllm.scenarios.stopped import STOPPED
from tests.e2e_vllm.scenarios.watermark import WATERMARK

SCENARIOS = (STOPPED, JSON_FLOOD, EMBEDDING, LORA, WATERMARK, SESSIONS, ROOM, LOADS)
