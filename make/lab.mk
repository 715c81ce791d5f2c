# The scheduler's lab, the public reports, and what runs as long as you like.

.PHONY: wild
wild: $(VENV)/.dev ## reports of people who run inference servers: what is said of each, right or not
	PYTHONPATH=exporter nice $(BIN)/python -m tests.wild

.PHONY: dropped
dropped: $(VENV)/.dev ## every recording without each family of its page: no other verdict, but for those listed (15 minutes)
	DROPPED=all $(BIN)/python -m pytest -q -n 2 tests/promises/test_dropped_evidence.py

.PHONY: lab lab-sglang
lab: $(VENV)/.dev ## record vLLM's own scheduler in every situation, at four versions (fetches 0.6 GB once; 25 minutes)
	$(BIN)/python -m tests.lab
	$(BIN)/python -m tests.lab --long
	$(BIN)/python -m tests.lab.inventory

lab-sglang: $(VENV)/.dev ## the same of SGLang's scheduler, and what is told rightly of it (fetches 40 MB once; 5 minutes)
	$(BIN)/python -m tests.lab.sglang
	$(BIN)/python -m tests.lab.sglang.inventory
	PYTHONPATH=exporter $(BIN)/python -m bench.detection.lab .cache/lab/sglang --wrong

.PHONY: soak
soak: $(VENV)/.dev tools ## leaks, lost polls and wrong verdicts under churn and faults, in virtual and in real time (20 minutes)
	PYTHONPATH=exporter $(BIN)/python -m tests.soak

# As long as you like: it goes on where it ended. TARGETS="yaml settings" for some of them, WORKERS=2 for two at once.
.PHONY: fuzz
fuzz: $(VENV)/.dev ## give random inputs to everything that reads foreign text, for SECONDS=600
	PYTHONPATH=exporter $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600) --seed $(or $(SEED),1) --workers $(or $(WORKERS),1) --targets "$(TARGETS)"
