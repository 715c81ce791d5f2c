"""The samples of one page, read at once."""

from kvpressure.promtext.lines import Series
from kvpressure.promtext.scanner import PageScanner


def read_samples(page: bytes, wanted: frozenset[bytes]) -> tuple[dict[Series, float], bool]:
    """Every wanted sample of one page, and whether its last line is complete.

    Of samples with the same name and labels the last one counts. Raises PageError as `PageScanner.scan` does.
    """
    series, values = PageScanner(wanted, lambda found: found).scan(page)
    return dict(zip(series, values, strict=True)), page.endswith(b"\n")
