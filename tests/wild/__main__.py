"""Prints the public cases: right, or what of it is not."""

import sys

from tests.wild.judge import cases, wrongs


def table() -> tuple[list[str], int]:
    """Return a line a case, and how many are not right."""
    lines, short = [], 0
    for case in cases():
        found = wrongs(case)
        short += bool(found)
        lines.append(f"{'right' if not found else 'short'}  {case.name:24} {'; '.join(found) or case.what}"[:160])
    return lines, short


if __name__ == "__main__":
    printed, missed = table()
    sys.stdout.write("\n".join([*printed, f"{len(printed) - missed} of {len(printed)} right"]) + "\n")
    raise SystemExit(missed > sum(bool(case.short) for case in cases()))
