# rlinf: `make demo` shows a robot that learns, `make test` checks everything. Both install what they need into .venv.
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.setup-done
SIMULATORS := $(VENV)/.simulators-done

APART := genesis libero calvin
.PHONY: help setup simulators $(APART) demo test test-all mutants lint clean

help:            ## this list
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

setup: $(STAMP)  ## install into .venv and build the ROS 2 messages
$(STAMP): locks/python311.lock pyproject.toml scripts/setup.sh scripts/build_messages.sh $(wildcard ros_ws/src/rlinf_msgs/*/*)
	scripts/setup.sh
	@touch $@

simulators: $(SIMULATORS)  ## add ManiSkill, robosuite, MetaWorld and Gymnasium-Robotics
$(SIMULATORS): $(STAMP) locks/simulators311.lock scripts/simulators.sh
	scripts/simulators.sh
	@touch $@

genesis:         ## add Genesis, in an environment of its own; so too: make libero, make calvin
$(APART): setup
	scripts/apart.sh $@

demo: setup      ## record demonstrations, train, evaluate before and after, write runs/<time>/report.md
	$(VENV)/bin/rlinf demo $(DEMO)

test: simulators ## the test suite without the slow runs
	scripts/run_tests.sh -m "not slow"

test-all: simulators $(APART)  ## everything, the simulators of their own environments included
	scripts/run_tests.sh

mutants: setup   ## whether the tests notice one wrong line: a sample of mutants, in an hour (docs/testing.md)
	$(VENV)/bin/python scripts/mutants.py --seed 0 --json benchmarks/results/mutants.json

lint: setup      ## ruff
	$(VENV)/bin/ruff check .

clean:           ## remove what was built, keep runs/
	rm -rf $(VENV) .venvs ros_ws/build ros_ws/install ros_ws/log
