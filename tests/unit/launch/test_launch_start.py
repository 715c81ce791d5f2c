"""What a container starts where its command is a script of its own."""

import pytest

from kvpressure.commandline.words import Budget
from kvpressure.launch import read_limits, read_start
from tests.support.starts import declared_limits

PATH = "/scripts/start.sh"
SCRIPT = '#!/bin/bash\nARGS="--max-num-seqs 24"\nexec vllm serve m $ARGS $1\n'


@pytest.mark.parametrize(
    "command", [[PATH], ["/bin/bash", PATH], ["bash", "-eu", PATH], ["tini", "--", PATH], ["tini", "--", "bash", PATH]]
)
def test_a_start_script_that_is_mounted_is_read(command: list[str]) -> None:
    found = declared_limits(command, ["--max-num-batched-tokens=4k"], {}, {}, {PATH: SCRIPT})
    assert {one.name: one.value for one in found} == {"max_num_seqs": 24, "max_num_batched_tokens": 4000}


def test_a_script_that_starts_itself_ends() -> None:
    start = read_start(["bash", PATH], [], {}, Budget(), {PATH: f"bash {PATH}"})
    assert start.cut


def test_of_one_that_is_not_there_nothing_is_said() -> None:
    reading = read_limits(read_start(["/bin/bash", PATH], [], {}, Budget()))
    assert reading.hidden == (f"what /bin/bash {PATH} starts is not known from the manifest",)
    assert reading.model == ""
