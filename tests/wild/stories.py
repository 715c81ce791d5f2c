"""Writes the pages of reports that give figures and no page: `python -m tests.wild.stories` (tests/fixtures/wild).

Counts, rates and shares are those of the reports that `cases.yaml` names; lengths of requests, counters' beginnings and
block counts were filled in where a report gives none.
"""

import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.tools import FIXTURES
from tests.wild.more_stories import MORE, MORE_SGLANG
from tests.wild.servers import Phase, Server, Story, pool, rounds, sglang, vllm

BEGAN = 1_795_600_000.0


_THREE_IDLE = Phase(180, running=6, usage=(0.2, 0.2), prompt=900, generated=240, started=0.3, ended=0.3, steps=40)
_RANK = Phase(150, running=14, usage=(0.4, 0.4), generated=0, more={"sglang:num_decode_prealloc_queue_reqs": 3})

STORIES: Mapping[str, Story] = {
    # vllm#54458: 457,880 tokens, 12 tokens of prompt take 32.9 % of it, 2 or 3 run, 8 to 30 tokens/s for 6 agents.
    "hybrid-pages": [
        (
            Server((900, 400), (20, 60), pool(457_880, 262_144, 7_808, 70) | {"mamba_block_size": 7_808}),
            rounds(
                [
                    Phase(30, 2, 4, usage=(0.66, 0.67), prompt=60, generated=19, started=0.04, ended=0.04, steps=10),
                    Phase(15, 3, 3, usage=(0.98, 0.99), prompt=90, generated=27, started=0.07, ended=0.07, steps=10),
                ],
                4,
            ),
        )
    ],
    # vllm#47272: a pool of 262,144 tokens, a prompt as long; 0 tokens/s for ever, one waits for capacity.
    "prompt-as-long-as-the-pool": [
        (
            Server((30_000, 300), (5, 20), pool(262_144, 262_144, 1_600)),
            [
                Phase(30, 1, usage=(0.1, 0.12), prompt=900, generated=30, started=0.1, ended=0.1, steps=20),
                Phase(1, ended=1),
                Phase(180, 0, 1),
            ],
        )
    ],
    # vllm-metal#479: nothing runs, six wait for capacity, 0 %, for an hour.
    "capacity-of-an-empty-pool": [(Server((20_000, 300), (5, 20), pool(90_112, 90_000)), [Phase(240, 0, 6)])],
    # intel/llm-scaler#391: 1 runs, 14 wait, 76.5 % and 0.15 more in 10 s, 5.4 tokens/s, no prompt, for an hour.
    "one-endless-answer": [
        (
            Server((12_000, 600), (60, 200), pool(36_000, 32_768), preempted=0),
            [Phase(300, 1, 14, usage=(0.765, 0.81), generated=5.4, steps=5.4)],
        )
    ],
    # vllm#54919: 4 run, none waits, far from full, 0.5 to 5 tokens/s for minutes, then the prompt is counted.
    "prefill-starves-decode": [
        (
            Server((40_000, 800), (20, 60), pool(1_853_358, 262_144), preempted=0),
            [
                Phase(60, 3, usage=(0.2, 0.21), prompt=600, generated=70, started=0.02, ended=0.02, steps=20),
                Phase(200, 4, usage=(0.21, 0.33), generated=2, steps=0.5),
            ],
        )
    ],
    # PR 37307: 4 prompts of 100 k hold 90 %, a fifth is computed by half and preempted, again and again: 1.5 tokens/s.
    "admitted-and-preempted": [
        (
            Server((100_000, 1_000), (30, 90), pool(440_000, 131_072), preempted=40),
            rounds(
                [
                    Phase(9, 5, 12, usage=(0.91, 1.0), generated=12, steps=3),
                    Phase(1, 4, 13, preempted=1, usage=(0.91, 0.91)),
                ],
                15,
            ),
        )
    ],
    # vllm#2731: V0, 35 run, 115 pend, 99 %, then not one token.
    "v0-stands": [
        (
            Server((1_000, 200), (1, 10), {"num_gpu_blocks": 7_000}, old=True),
            [
                *rounds(
                    [
                        Phase(5, 35, 115, usage=(0.985, 0.995), prompt=380, generated=118, started=1, ended=1, steps=8),
                        Phase(5, 33, 117, usage=(0.97, 0.99), prompt=380, generated=110, ended=1, steps=8),
                    ],
                    6,
                ),
                Phase(120, 35, 115, usage=(0.99, 0.99)),
            ],
        )
    ],
    # vllm#5578: V0 with swap: 34 to 39 run, 100 to 137 are swapped, 9,800 pend, 76 to 99 %.
    "v0-swaps": [
        (
            Server((350, 300), (30, 60), {"num_gpu_blocks": 8_192}, old=True),
            rounds(
                [
                    Phase(
                        5,
                        34,
                        9_832,
                        usage=(0.99, 0.99),
                        prompt=2_700,
                        generated=13_000,
                        started=4,
                        ended=4,
                        preempted=8,
                        steps=20,
                        more={"vllm:num_requests_swapped": 100},
                    ),
                    Phase(
                        5,
                        37,
                        9_779,
                        usage=(0.77, 0.9),
                        prompt=3_700,
                        generated=8_900,
                        started=5,
                        ended=5,
                        preempted=7,
                        steps=20,
                        more={"vllm:num_requests_swapped": 137},
                    ),
                ],
                18,
            ),
        )
    ],
    # vllm#15018: 2 run, none waits, 0.6 %, 0.4 tokens/s.
    "two-at-0.4": [
        (
            Server(
                (300, 500),
                (1, 30),
                {"num_gpu_blocks": 5_000},
                old=True,
                preempted=0,
                prompt=9e3,
                generated=1e4,
                ended=20,
                started=20,
                steps=1e4,
            ),
            [
                Phase(60, 1, usage=(0.003, 0.005), generated=22, steps=22),
                Phase(1, 2, usage=(0.006, 0.006), prompt=300, started=1),
                Phase(150, 2, usage=(0.006, 0.006), generated=0.4, steps=0.2),
            ],
        )
    ],
    # vllm#43295: 18 to 21 run, 23 to 43 wait, 88 to 98 %, prompts in bursts of 12 k to 18 k tokens/s.
    "bursts-at-a-full-pool": [
        (
            Server((16_000, 2_000), (25, 60), pool(340_000, 65_536)),
            rounds(
                [
                    Phase(20, 18, 43, usage=(0.955, 0.96), generated=1_140, steps=60),
                    Phase(10, 18, 33, usage=(0.88, 0.9), prompt=12_068, generated=735, started=1, ended=1, steps=30),
                    Phase(
                        10,
                        21,
                        23,
                        usage=(0.9, 0.96),
                        prompt=18_032,
                        generated=590,
                        started=1,
                        ended=0.7,
                        steps=25,
                        preempted=0.1,
                    ),
                    Phase(10, 20, 23, usage=(0.96, 0.984), generated=1_242, steps=60),
                ],
                3,
            ),
        )
    ],
    # prime-rl#3255: sessions pinned by a hash: one engine is preempted, hits 98 to 5 %, three are nearly idle.
    "pinned-sessions": [
        (
            Server((20_000, 800), (15, 60), pool(400_000, 131_072), engine="0"),
            [
                Phase(
                    180,
                    18,
                    30,
                    usage=(0.97, 0.99),
                    prompt=9_000,
                    generated=300,
                    started=0.4,
                    ended=0.4,
                    preempted=0.5,
                    steps=10,
                )
            ],
        ),
        *(
            (Server((20_000, 800), (1, 12), pool(400_000, 131_072), engine=str(rank), preempted=0), [_THREE_IDLE])
            for rank in (1, 2, 3)
        ),
    ],
    # llm-d-kv-cache#559, vllm#49545: a store that answers slowly: requests wait up to 60 s for their KV.
    "slow-store": [
        (
            Server((64_000, 200), (40, 50), pool(600_000, 131_072)),
            [
                Phase(
                    180,
                    2,
                    11,
                    deferred=10,
                    usage=(0.7, 0.72),
                    prompt=13_000,
                    generated=60,
                    started=0.2,
                    ended=0.2,
                    steps=25,
                    more={
                        "vllm:external_prefix_cache_queries_total": 9e6,
                        "vllm:external_prefix_cache_hits_total": 8e6,
                        "vllm:kv_offload_load_bytes_total": 9e11,
                    },
                )
            ],
        )
    ],
    # vllm#49203: all seats run, 0.0 tokens/s, until it is restarted.
    "sixteen-run-none-moves": [
        (
            Server((4_000, 600), (1, 12), pool(900_000, 262_144), preempted=0),
            [
                Phase(60, 14, usage=(0.3, 0.33), prompt=4_000, generated=400, started=1, ended=1, steps=30),
                Phase(120, 16, usage=(0.34, 0.34)),
            ],
        )
    ],
    # sglang#26248: 4 run at 100 % with 3 queued and 429 tokens/s; after a retraction 6 run at 92 % with 20 to 38.
    "after-a-retraction": [
        (
            Server(
                (300_000, 9_000),
                (30, 120),
                {"max_total_num_tokens": 2_650_000, "page_size": 1, "context_len": 1_000_000},
                preempted=0,
            ),
            [
                Phase(
                    60,
                    4,
                    3,
                    usage=(0.99, 1.0),
                    generated=429,
                    steps=107,
                    more={"sglang:full_token_usage": 1.0, "sglang:swa_token_usage": 0.06},
                ),
                Phase(
                    1,
                    3,
                    4,
                    preempted=1,
                    usage=(0.9, 0.9),
                    more={"sglang:full_token_usage": 0.9, "sglang:swa_token_usage": 0.06},
                ),
                Phase(
                    100,
                    6,
                    1,
                    usage=(0.919, 0.92),
                    generated=30,
                    steps=5,
                    more={"sglang:full_token_usage": 0.92, "sglang:swa_token_usage": 0.09},
                ),
            ],
        )
    ],
    # sglang#35537: 4 may run, 3 do and one waits until one of them is done, in pools that are nearly empty.
    "a-seat-left-empty": [
        (
            Server(
                (9_000, 2_500),
                (6, 60),
                {"max_total_num_tokens": 900_000, "page_size": 1, "context_len": 262_144, "max_running_requests": 4},
                preempted=0,
            ),
            [Phase(180, 3, 1, usage=(0.04, 0.05), generated=150, prompt=100, started=0.015, ended=0.015, steps=50)],
        )
    ],
    # jpezzulli/sglang-rtxpro6000#5: 8 run of 8, the Mamba pool at 80 %, that of tokens at 35 %, requests queue.
    "seats-of-a-state-pool": [
        (
            Server(
                (30_000, 1_200),
                (6, 40),
                {"max_total_num_tokens": 1_200_000, "page_size": 1, "context_len": 262_144, "max_running_requests": 8},
                preempted=0,
            ),
            [
                Phase(
                    180,
                    8,
                    4,
                    usage=(0.35, 0.36),
                    generated=320,
                    prompt=6_000,
                    started=0.2,
                    ended=0.2,
                    steps=40,
                    more={"sglang:token_usage": 0.8, "sglang:full_token_usage": 0.35, "sglang:mamba_usage": 0.8},
                )
            ],
        )
    ],
    # sglang#31800: transfers that never end: running about 1, cache at 4 %, the transfer queue stands.
    "transfers-never-end": [
        (
            Server(
                (8_000, 900),
                (2, 30),
                {"max_total_num_tokens": 1_500_000, "page_size": 64, "context_len": 262_144},
                preempted=0,
            ),
            [
                Phase(
                    60,
                    30,
                    usage=(0.5, 0.52),
                    generated=1_500,
                    started=1,
                    ended=1,
                    steps=50,
                    more={"sglang:num_decode_transfer_queue_reqs": 4, "sglang:num_decode_prealloc_queue_reqs": 0},
                ),
                Phase(
                    150,
                    1,
                    usage=(0.04, 0.04),
                    generated=45,
                    started=0.02,
                    ended=0.02,
                    steps=45,
                    more={"sglang:num_decode_transfer_queue_reqs": 96, "sglang:num_decode_prealloc_queue_reqs": 40},
                ),
            ],
        )
    ],
    # sglang#30033: a rank of eight whose pool is full stands, and all others with it.
    "ranks-in-lockstep": [
        (
            Server(
                (20_000, 2_000),
                (3, 60),
                {"max_total_num_tokens": 400_000, "page_size": 64, "context_len": 202_752},
                engine=str(rank),
            ),
            [
                Phase(60, 12, usage=(0.4, 0.45), generated=300, started=0.2, ended=0.2, steps=25),
                replace(_RANK, usage=(1.0, 1.0)) if rank == 3 else _RANK,
            ],
        )
        for rank in range(1, 9)
    ],
    # llm-d-autoscaling#662: prompts of 6,000, answers of 2, steps of 65,000 tokens: ~20 run, 32 %, the queue grows.
    "prompts-of-6000": [
        (
            Server((6_000, 2), (20, 20), pool(400_000, 32_768), preempted=0),
            [
                Phase(
                    20,
                    20,
                    10 + 15 * more,
                    usage=(0.32, 0.32),
                    prompt=39_000,
                    generated=13,
                    started=6.5,
                    ended=6.5,
                    steps=0.6,
                )
                for more in range(9)
            ],
        )
    ],
    # vllm#27073: 33 or 34 run, 18 to 47 wait, 97.5 to 99.2 %, 720 to 757 tokens/s, for hours.
    "full-for-hours": [
        (
            Server((9_000, 700), (20, 60), pool(420_000, 131_072), preempted=60),
            [
                Phase(
                    10,
                    34,
                    18,
                    usage=(0.97, 0.99),
                    prompt=3_000,
                    generated=757,
                    started=1,
                    ended=1,
                    preempted=0.3,
                    steps=23,
                ),
                Phase(
                    40,
                    33,
                    40,
                    usage=(0.975, 0.99),
                    prompt=3_000,
                    generated=736,
                    started=1,
                    ended=1,
                    preempted=0.3,
                    steps=23,
                ),
                Phase(
                    130,
                    33,
                    47,
                    usage=(0.97, 0.992),
                    prompt=3_000,
                    generated=719,
                    started=1,
                    ended=1,
                    preempted=0.3,
                    steps=23,
                ),
            ],
        )
    ],
    # sglang#938: 1,010 run, 12,279 wait, 55,006 tokens are 93 % of the pool, 1,397 tokens/s.
    "thousand-short-ones": [
        (
            Server(
                (40, 30),
                (30, 60),
                {"max_total_num_tokens": 59_146, "page_size": 1, "context_len": 4_096, "new_token_ratio": 0.3},
            ),
            [
                Phase(
                    150,
                    1_010,
                    12_279,
                    usage=(0.92, 0.94),
                    prompt=2_000,
                    generated=1_397,
                    started=45,
                    ended=45,
                    preempted=8,
                    steps=1.6,
                )
            ],
        )
    ],
    # sglang#30294: of 16 seats of each rank 15 are taken, one waits, in pools with room.
    "one-below-its-seats": [
        (
            Server(
                (4_000, 1_000),
                (5, 60),
                {"max_total_num_tokens": 900_000, "page_size": 1, "context_len": 131_072},
                engine=str(rank + 1),
                preempted=0,
            ),
            [Phase(150, 15, 1, usage=(0.1, 0.1), prompt=1_000, generated=450, started=0.3, ended=0.3, steps=30)],
        )
        for rank in range(2)
    ],
    # sglang#3909: 8 run, none waits, 12 % and rising, 187 tokens/s and a little less with every token.
    "slower-with-every-token": [
        (
            Server(
                (7_000, 2_000),
                (2, 90),
                {"max_total_num_tokens": 510_000, "page_size": 1, "context_len": 163_840},
                preempted=0,
            ),
            [
                Phase(40, 8, usage=(0.12, 0.135), generated=187, steps=23),
                Phase(40, 8, usage=(0.135, 0.15), generated=183, steps=23),
                Phase(60, 8, usage=(0.15, 0.17), generated=178, steps=22),
            ],
        )
    ],
    # tenstorrent/vllm#55: V0: 16 run, none pends, 16.7 tokens/s, 92.1 % and 0.1 more every second.
    "fills-and-nobody-waits": [
        (
            Server((1_500, 600), (5, 90), pool(40_000, 8_192), old=True, preempted=0),
            [
                Phase(60, 16, usage=(0.86, 0.92), generated=16.7, steps=1.05),
                Phase(60, 16, usage=(0.92, 0.985), generated=16.7, steps=1.05),
            ],
        )
    ],
    **MORE,
    **MORE_SGLANG,
}
_RUNTIMES = {
    **dict.fromkeys(
        (
            "after-a-retraction",
            "a-seat-left-empty",
            "seats-of-a-state-pool",
            "transfers-never-end",
            "ranks-in-lockstep",
            "thousand-short-ones",
            "one-below-its-seats",
            "slower-with-every-token",
            *MORE_SGLANG,
        ),
        sglang,
    )
}


def pages(name: str) -> Iterator[tuple[float, str]]:
    """Yield the time and the page of every second of a story."""
    lines, clocks = _RUNTIMES.get(name, vllm), [list(_seconds(phases)) for _, phases in STORIES[name]]
    servers = [replace(server) for server, _ in STORIES[name]]
    for second, now in enumerate(zip(*clocks, strict=True)):
        text: list[str] = []
        for server, (phase, share) in zip(servers, now, strict=True):
            server.passes(phase)
            text += lines(server, phase, share)
        yield BEGAN + second, "\n".join(dict.fromkeys(text)) + "\n"


def _seconds(phases: Sequence[Phase]) -> Iterator[tuple[Phase, float]]:
    for phase in phases:
        yield from ((phase, second / phase.seconds) for second in range(phase.seconds))


def write(folder: Path) -> None:
    """Write a recording for each story."""
    for name in STORIES:
        with lzma.open(folder / f"{name}.jsonl.xz", "wt") as file:
            file.writelines(json.dumps({"t": t, "label": "", "page": page}) + "\n" for t, page in pages(name))


if __name__ == "__main__":
    write(FIXTURES / "wild")
