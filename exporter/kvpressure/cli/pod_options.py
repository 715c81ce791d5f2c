"""Options of commands that reach engines in pods through a port-forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_SELECTOR = click.option("-l", "--selector", default=None, help="Triage the pods with these labels, such as app=llama.")
_POD_OPTIONS = (
    click.option("--context", default=None, help="Context of the kubeconfig; without it the current one."),
    click.option("--kubeconfig", type=click.Path(path_type=Path), help="Instead of $KUBECONFIG or ~/.kube/config."),
    click.option("--port", type=click.IntRange(1, 65535), help="Port in the pod, where its spec does not tell."),
)


def pod_options(function: F) -> F:
    """How to find and reach pods."""
    return _SELECTOR(reach_options(function))


def reach_options(function: F) -> F:
    """How to reach pods."""
    for option in reversed(_POD_OPTIONS):
        function = option(function)
    return function
