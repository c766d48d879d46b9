.PHONY: setup demo test lint bench score docs clean

setup:
	@./scripts/setup.sh

demo: setup
	@.venv/bin/jobwatchdog demo $(DEMO)

test: setup
	@./scripts/test.sh $(TESTS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: setup
	.venv/bin/python -m benchmarks

score: setup
	@.venv/bin/python $(or $(CORPUS),../shared/corpus)/score.py --command ".venv/bin/jobwatchdog replay --format json" $(SCORE)

docs: setup
	.venv/bin/python scripts/generate_docs.py

clean:
	rm -rf .venv dist build demo-run
