"""Fuzzing of everything that reads what others wrote: `make fuzz`.

A target (`targets/*.py`) makes inputs, gives them to the code under test and says what must hold of the answer. The
engine mixes made inputs with mutations of a corpus that grows by whatever reaches new code or a new kind of answer. A
finding is shrunk into `regressions/<target>/`, and `make test` replays all of those.
"""
