"""Files that are more than they look."""

LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30))])
"""A billion laughs: a kilobyte of YAML whose aliases stand for 2^30 values."""
