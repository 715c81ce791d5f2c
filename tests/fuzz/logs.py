"""Log lines for the targets that read logs."""

from functools import cache
from pathlib import Path
from random import Random

from kvpressure.sources.logs import classify

_FOLDER = Path(__file__).parents[1] / "fixtures" / "logs"
LEVELS = (
    "INFO 01-02 03:04:05 ",
    "ERROR 01-02 03:04:05 [core.py:5] ",
    "WARNING ",
    "(EngineCore pid=1) ERROR ",
    "",
    "DEBUG ",
)
QUOTES = (
    "Received request x: prompt: ",
    "'content': '",
    "ValueError: ",
    "The model `",
    "http://a/",
    "TypeError: ",
    '"GET ',
)
NUMBERS = ("1", "0", "-1.5", "1,000", "9" * 20, "9" * 13, "1.123456789", "0.00", "\u0663", ",", "1e9", "\u00b2")


@cache
def recorded() -> tuple[str, ...]:
    """Lines of recorded logs, each once."""
    texts = (path.read_text("utf-8", "replace") for path in sorted(_FOLDER.glob("*.*")) if path.suffix != ".md")
    return tuple(dict.fromkeys(line[:1000] for text in texts for line in text.split("\n")))


@cache
def words() -> tuple[str, ...]:
    """What the classifier and the learner look for."""
    wordings = [text for row in classify._WORDINGS for text in row[1:] if text]
    return tuple(dict.fromkeys((*wordings, *classify.WORDS, *LEVELS, *QUOTES)))


def line(random: Random) -> str:
    """A line of a log, as likely as not one that tells something."""
    choice = random.getrandbits(3)
    if choice < 3:
        return random.choice(recorded())
    number = random.choice(NUMBERS)
    told = random.choice((
        *(random.choice(words()), random.choice(words()).upper(), f"GPU KV cache size: {number} tokens"),
        *(f"Available KV cache memory: {number} GiB", f"# GPU blocks: {number}, # CPU blocks: 5"),
        f"Maximum concurrency for {number} tokens per request: {random.choice(NUMBERS)}x",
        f"Overriding num_gpu_blocks={number} with num_gpu_blocks_override={random.choice(NUMBERS)}",
        f"vLLM API server version {number}",
    ))  # fmt: skip
    return random.choice(LEVELS) + random.choice(("", "", *QUOTES)) + told + random.choice(("", "", " more", "\x1b[0m"))
