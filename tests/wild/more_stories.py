"""Reports of servers that stand, wait and preempt, found after those of `stories`, written down before they ran.

Counts, rates and shares are those of the reports that `cases.yaml` names; the rest was filled in.
"""

from collections.abc import Mapping

from tests.wild.servers import Phase, Server, Story, pool, rounds

MORE: Mapping[str, Story] = {
    # vllm#11517: V0 with --enable-lora (one slot): 1 runs, 3 pend, 3 to 4 % of 50,231 blocks, 45.7 tokens/s.
    "one-slot-for-adapters": [
        (
            Server((1_500, 700), (20, 36), pool(50_231 * 16, 32_768), old=True, preempted=0),
            rounds(
                [
                    Phase(15, 1, 3, usage=(0.031, 0.032), generated=45.7, steps=45.7),
                    Phase(1, 1, 3, usage=(0.03, 0.03), prompt=1_500, generated=40, started=1, ended=1, steps=40),
                ],
                12,
            ),
        )
    ],
    # vllm#3094: V0: 2 run, 3 pend, 82.1 %, 44.9 tokens/s; who runs goes back to pending, nothing is swapped.
    "back-to-pending": [
        (
            Server((9_000, 900), (30, 70), pool(24_000, 16_384), old=True, preempted=0),
            rounds(
                [
                    Phase(20, 2, 3, usage=(0.80, 0.86), generated=44.9, steps=22),
                    Phase(4, 1, 4, usage=(0.45, 0.5), prompt=1_800, generated=20, started=0.25, ended=0.25, steps=20),
                ],
                8,
            ),
        )
    ],
    # vllm PR 25787: prompts and answers of 1,024: 260 run, 475 wait, 100 %, 7,098 tokens/s.
    "bench-of-a-thousand": [
        (
            Server((1_024, 1_024), (40, 80), pool(430_000, 8_192), preempted=0),
            rounds(
                [
                    Phase(10, 260, 475, usage=(0.998, 1.0), generated=7_098, preempted=1, steps=27),
                    Phase(
                        5,
                        262,
                        460,
                        usage=(0.985, 0.998),
                        prompt=8_000,
                        generated=6_000,
                        started=8,
                        ended=8,
                        steps=22,
                    ),
                ],
                10,
            ),
        )
    ],
    # vllm#18115: 8 run, none waits, 91.2 % and 0.4 more in 10 s, 240 tokens/s; then they preempt each other.
    "eight-outgrow-the-pool": [
        (
            Server((6_000, 9_000), (4, 300), pool(110_000, 32_768), preempted=0),
            [
                Phase(120, 8, usage=(0.912, 0.96), generated=240, steps=30),
                Phase(90, 8, usage=(0.96, 0.996), generated=240, steps=30),
                *rounds(
                    [
                        Phase(8, 7, 1, usage=(0.97, 1.0), prompt=900, generated=60, preempted=0.25, steps=9),
                        Phase(4, 6, 2, usage=(0.9, 0.99), prompt=2_400, generated=40, preempted=0.25, steps=7),
                    ],
                    8,
                ),
            ],
        )
    ],
    # vllm PR 21793: two prompts of 120,000 tokens in a pool for one and a part: the second is begun and preempted.
    "begun-and-preempted": [
        (
            Server((120_000, 1_000), (60, 130), pool(170_000, 131_072), preempted=0),
            rounds(
                [
                    Phase(8, 2, usage=(0.74, 1.0), prompt=5_000, generated=7, steps=7),
                    Phase(1, 1, 1, usage=(0.73, 0.73), generated=20, preempted=1, steps=20),
                ],
                20,
            ),
        )
    ],
    # vllm PR 8378: after three answers nothing runs, 12 pend, then 22, 0 %, 0.0 tokens/s.
    "three-answers-and-no-more": [
        (
            Server((300, 40), (1, 5), pool(300_000, 8_192), old=True, preempted=0),
            [
                Phase(30, 2, usage=(0.001, 0.001), prompt=70, generated=6, started=0.2, ended=0.2, steps=6),
                Phase(5, 0, 12, generated=5.6, steps=3),
                Phase(60, 0, 22),
                Phase(120, 0, 40),
            ],
        )
    ],
    # vllm#1492: 2 run, 20 pend, 98.7 %, 642 and 61 tokens/s; then no request is answered any more, for ever.
    "last-seen-nearly-full": [
        (
            Server((900, 500), (10, 40), pool(18_000, 2_048), old=True, preempted=0),
            [
                Phase(90, 2, 20, usage=(0.96, 0.99), prompt=642, generated=61, started=0.7, ended=0.7, steps=31),
                Phase(150, 2, 20, usage=(0.987, 0.987)),
            ],
        )
    ],
    # vllm#30599: it thinks until its cap: 1 runs, none waits, 0.3 % and 0.25 more in 10 s, 180 tokens/s.
    "thinks-to-its-cap": [
        (
            Server((1_060, 20_000), (0.1, 110), pool(700_000, 131_072), preempted=0),
            [
                Phase(5, usage=(0, 0)),
                Phase(1, 1, usage=(0.002, 0.002), prompt=1_060, generated=100, started=1, steps=100),
                Phase(180, 1, usage=(0.003, 0.047), generated=180, steps=180),
            ],
        )
    ],
}

MORE_SGLANG: Mapping[str, Story] = {
    # sglang#4759: drafts lower the seats to 32: 32 run, 68 queue, 1 %, 39 tokens/s at first and more later.
    "drafts-and-few-seats": [
        (
            Server(
                (128, 200),
                (20, 60),
                {"max_total_num_tokens": 700_000, "page_size": 1, "context_len": 4_096},
                preempted=0,
            ),
            rounds(
                [
                    Phase(14, 32, 68, usage=(0.009, 0.011), generated=39, steps=0.5),
                    Phase(2, 30, 66, usage=(0.01, 0.01), prompt=126, generated=60, started=1, ended=1, steps=1),
                    Phase(2, 29, 63, usage=(0.01, 0.01), prompt=189, generated=60, started=1.5, ended=1.5, steps=1),
                ],
                10,
            ),
        )
    ],
    # OpenClaw-RL#44: 6 run, 4 %, 1,371 tokens/s, none queues; then a lock, and no line any more.
    "six-run-and-a-lock": [
        (
            Server(
                (5_000, 2_000),
                (1, 20),
                {"max_total_num_tokens": 1_060_000, "page_size": 1, "context_len": 32_768},
                preempted=0,
            ),
            [
                Phase(90, 6, usage=(0.038, 0.042), prompt=3_400, generated=1_371, started=0.7, ended=0.7, steps=229),
                Phase(150, 6, usage=(0.042, 0.042)),
            ],
        )
    ],
}
