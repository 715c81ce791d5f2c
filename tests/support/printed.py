"""What a report looks like on a terminal."""

import io
from typing import Any

from rich.console import Console, RenderableType


def printed(renderable: RenderableType, width: int = 100, **options: Any) -> str:
    """Its lines on a console of `width` columns, without blanks at their ends."""
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, markup=False, emoji=False, **options).print(renderable, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
