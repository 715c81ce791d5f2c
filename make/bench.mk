# What is measured: speed, how well causes are found, what advice brings, what rules cost.

.PHONY: bench bench-detection bench-rules
bench: $(VENV)/.dev tools ## the numbers to hold, printed and written to bench/results.json
	$(BIN)/python -m bench

bench-detection: $(VENV)/.dev tools ## how well causes are found, beside the rules people use today
	$(BIN)/python -m bench.detection
	PYTHONPATH=exporter $(BIN)/python -m bench.detection.others

.PHONY: bench-advice
bench-advice: $(VENV)/.dev ## advice on vLLM's own scheduler: predicted, done, measured; three hours of CPU, goes on where it was stopped
	PYTHONPATH=exporter $(BIN)/python -m bench.advice --write-docs
	PYTHONPATH=exporter $(BIN)/python -m bench.advice.eviction --write-docs

.PHONY: bench-worlds
bench-worlds: $(VENV)/.dev ## predictions against a foreign simulator's outcomes, open and closed arrivals apart; needs ../shared/worlds
	PYTHONPATH=exporter $(BIN)/python -m bench.advice.worlds $(or $(WORLDS),../shared/worlds/predict) $(wildcard tests/fixtures/lab/*.jsonl.xz tests/fixtures/traces/*.jsonl.xz)

.PHONY: bench-cost
bench-cost: $(VENV)/.dev ## lost tokens as told, beside those of the same clients with room for all (10 minutes)
	PYTHONPATH=exporter $(BIN)/python -m bench.cost --write-docs

.PHONY: bench-scaling
bench-scaling: $(VENV)/.dev ## autoscalers on the same traffic, on vLLM's own scheduler: bad minutes and replica-hours (15 minutes)
	PYTHONPATH=exporter $(BIN)/python -m bench.scaling --write-docs

.PHONY: bench-uneven
bench-uneven: $(VENV)/.dev tools ## whether uneven replicas are told: four routers on vLLM's own scheduler, the rules in promtool (20 minutes)
	PYTHONPATH=exporter $(BIN)/python -m bench.uneven --write-docs

bench-rules: $(VENV)/.dev tools ## what fleets of 1,000 and 10,000 engines cost a real Prometheus (25 minutes, 10 GB)
	PYTHONPATH=exporter $(BIN)/python -m bench.fleet
