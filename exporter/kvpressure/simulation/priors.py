"""What is known of step times before an engine's polls: how the terms lie beside each other, by its model's name."""

from __future__ import annotations

import math
import re
from typing import Final

from kvpressure.simulation.least_squares import Prior

DENSE: Final = Prior(
    (0.0, math.log(2.0e-3), math.log(4.6e-6), math.log(3.0e-3), math.log(1.4e-7)), (0.4, 0.3, 0.5, 0.3, 0.33)
)
"""Over a step's fixed part: a sequence, a token of context, a prompt token, and each one for each that precedes it.
Mean and deviation over what NVIDIA measured of dense models on cards (`bench/silicon/prior.py`); the fixed part has
what the host adds to a step as well, which no table of a card has."""
CONTEXT_TERM: Final = 2
CONTEXT_AT_8B: Final = math.log(7.1e-6)
CONTEXT_BY_SIZE: Final = -0.61
CONTEXT_DEVIATION: Final = 0.3
"""A token of context of a dense model whose billions of parameters are known: with these the weights that a step reads
grow more than what it reads of a token. The same tables are within 0.17 of it; other models share heads otherwise."""
EXPERTS: Final = 4.0
"""Times as long as the fixed part, reading all experts takes: nine tenths of the weights of such models are theirs, but
the host has its part in a step."""
EXPERTS_DEVIATION: Final = 0.7
UNEVEN: Final = 0.5
"""Of the share of the experts, as which tokens that mostly go to the same ones read them."""
USUAL_EXPERT_RATIO: Final = 8 / 128
"""Of a model with experts that is not known better (Qwen3-30B-A3B and most since)."""
_EXPERT_RATIOS: Final = (
    (r"qwen3-next|qwen3\.5", 10 / 512),
    (r"gpt-oss-20b", 4 / 32),
    (r"gpt-oss", 4 / 128),
    (r"\d+x\d+b|mixtral", 2 / 8),
    (r"deepseek-(v3|r1|chat-v3)(?!.*distill)", 8 / 256),
    (r"deepseek-v2", 6 / 160),
    (r"scout", 1 / 16),
    (r"maverick", 1 / 128),
    (r"kimi-k2", 8 / 384),
    (r"minimax-m", 8 / 256),
    (r"glm-4\.[5-9]", 8 / 160),
    (r"[-_]a\d+(\.\d+)?b|moe", USUAL_EXPERT_RATIO),
)
"""Experts that a token goes to, of all in a layer, by what stands in the names of models that have them."""
_PARAMETERS: Final = re.compile(r"(?<![a-z0-9])(\d+(?:\.\d+)?)b(?![a-z0-9])")


def dense(billions: float) -> Prior:
    """Return the prior of a dense model of so many billions of parameters."""
    logarithms, deviations = list(DENSE.logarithms), list(DENSE.deviations)
    logarithms[CONTEXT_TERM] = CONTEXT_AT_8B + CONTEXT_BY_SIZE * math.log(billions / 8)
    deviations[CONTEXT_TERM] = CONTEXT_DEVIATION
    return Prior(tuple(logarithms), tuple(deviations))


def with_experts(expert_ratio: float) -> Prior:
    """Return the prior of a model a token of which goes to that share of its experts."""
    return Prior(
        (*DENSE.logarithms, math.log(EXPERTS)), (*DENSE.deviations, EXPERTS_DEVIATION), expert_ratio=expert_ratio
    )


def prior_of(model_name: str) -> Prior | None:
    """Return the prior of a model by the name it is served under; None where that leaves open whether it has experts.

    A name with a number of parameters (8B), and no word of experts, is a dense model's.
    """
    name = model_name.lower()
    for pattern, expert_ratio in _EXPERT_RATIOS:
        if re.search(pattern, name):
            return with_experts(expert_ratio)
    size = _PARAMETERS.search(name)
    return None if size is None or not float(size[1]) else dense(float(size[1]))


def prior_otherwise(model_name: str) -> Prior | None:
    """Return a prior that such a model may have as well; None where it has no experts for sure."""
    prior = prior_of(model_name)
    if prior is not None and not prior.expert_ratio:
        return None
    return with_experts(USUAL_EXPERT_RATIO if prior is None else UNEVEN * prior.expert_ratio)
