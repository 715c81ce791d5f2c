"""An engine's page: refused for one of the documented reasons, or engines whose numbers are numbers."""

import math
from functools import cache
from random import Random

from kvpressure.engines.reader import PageReader
from kvpressure.promtext.lines import PageError
from kvpressure.runtimes.not_read import OF_METRIC
from tests.fuzz.pages import NUMBERS, value
from tests.fuzz.target import Target, expect
from tests.support.pages import SINGLES, inventory, made, single
from tests.support.reserving_server import Server, triton, trtllm

_REASONS = {"not_metrics", "truncated", "malformed", "not_read", "too_large"}


def check(data: bytes) -> tuple[object, ...]:
    """Equal pages are equal readings, remembered or not."""
    reader = PageReader()
    try:
        page = reader.read(data, 1.8e9)
    except PageError as error:
        expect(error.reason in _REASONS and len(str(error)) < 1000, "an unknown refusal", str(error))
        return (error.reason,)
    expect(repr(reader.read(data, 1.8e9)) == repr(page), "the same page again reads otherwise")
    for engine in page.engines:
        for values in (engine.gauges, engine.counters):
            expect(all(math.isfinite(one) for one in values.values()), "a signal that is no number", values)
    first = page.engines[0] if page.engines else None
    return (len(page.engines).bit_length(), *(sorted({*first.gauges, *first.counters}) if first else ())[:6])


@cache
def _lines() -> tuple[bytes, ...]:
    pages = [*(made(version) for version in inventory()), *map(single, SINGLES)]
    pages += [page(Server(8000)) for page in (trtllm, triton)]
    pages.append("".join(f"{name} 1\n" for name in OF_METRIC).encode())
    lines = (line for page in pages for line in page.split(b"\n"))
    own = (b"vllm", b"proc", b"tgi_", b"trtllm", b"nv_trt", b"llamacpp")
    return tuple(dict.fromkeys(line for line in lines if line.startswith(own)))


def make(random: Random) -> bytes:
    """Lines of one runtime's pages or of several, some with other values."""
    first = random.choice(_lines())[:4]
    among = [one for one in _lines() if random.getrandbits(3) == 0 or one.startswith(first)]
    lines = list(random.choices(among, k=random.getrandbits(5)))
    for at, one in enumerate(lines):
        choice = random.getrandbits(4)
        if choice < 3:
            lines[at] = one.rpartition(b" ")[0] + b" " + random.choice(NUMBERS)
        elif choice == 3 and b'"' in one:
            head, _, rest = one.partition(b'="')
            lines[at] = head + b'="' + value(random) + b'"' + rest.partition(b'"')[2]
    return b"\n".join(lines) + (b"\n" if random.getrandbits(4) else b"")


TARGET = Target(
    about="pages of vLLM 0.6 to 0.33 and TensorRT-LLM, and of servers that are not read, mixed and altered, as engines",
    make=make,
    check=check,
    words=(*NUMBERS, b'engine="1"', b'model_name=""', b'le="+Inf"', b"vllm:cache_config_info{", b"\n", b"ray_"),
    longest_bytes=6000,
)
