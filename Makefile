# rlinf: `make demo` shows a robot that learns, `make test` checks everything. Both install what they need into .venv.
VENV := .venv
STAMP := $(VENV)/.setup-done$(ROS_DISTRO:%=-%)
SIMULATORS := $(VENV)/.simulators-done

ISOLATED := genesis libero calvin isaaclab lerobot fci
.PHONY: dist help setup station simulators browser ros2 $(ISOLATED) references demo test test-all mutants lint docs clean

help:            ## this list
	@grep -E '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

setup: $(STAMP)  ## install into .venv and build the ROS 2 messages
$(STAMP): uv.lock pyproject.toml scripts/setup.sh scripts/install.py $(wildcard ros_ws/src/rlinf_msgs/*/* ros_ws/definitions/*/*/*)
	@rm -f $(VENV)/.setup-done*
	scripts/setup.sh trainer sim vla data rerun teleop servo page realsense gripper test
	@touch $@

station:         ## setup for a station's PC: nodes, recorder, uplink, doctor; without torch and ray
	scripts/setup.sh

simulators: $(SIMULATORS)  ## add ManiSkill, robosuite, MetaWorld and Gymnasium-Robotics
$(SIMULATORS): $(STAMP) scripts/simulators.sh
	scripts/simulators.sh

browser:         ## Chromium, in which the tests open the operator's page
	scripts/browser.sh

ros2: setup      ## ROS's own launch and command line beside the wheels, for the tests of launch files
	scripts/ros2_tools.sh

genesis:         ## add Genesis, in an environment of its own; so too: make libero, make calvin, make isaaclab, make fci
$(ISOLATED): setup
	scripts/isolated.sh $@

references: setup ## LeRobot 0.6 with its pi0, pi0.5 and SmolVLA, to compare with: benchmarks/vla_references.py (Python 3.12)
	scripts/references.sh

demo: setup      ## record demonstrations, train, evaluate before and after, write runs/<time>/report.md
	$(VENV)/bin/rlinf demo $(DEMO)

test: simulators browser ros2 ## the test suite without the slow runs
	scripts/test_all.sh "not slow"

test-all: simulators browser ros2 $(ISOLATED)  ## everything, the simulators of their own environments included
	scripts/test_all.sh

mutants: setup   ## whether the tests notice one wrong line: a sample of mutants, in an hour (docs/contribute/testing.md)
	$(VENV)/bin/python scripts/mutants.py --seed 0 --json benchmarks/results/mutants.json

lint: setup      ## ruff, types, import layers, and whether uv.lock is that of pyproject.toml
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy
	[ ! -x $(VENV)/bin/lint-imports ] || PYTHONPATH=.$$(printf ":%s" ros_ws/src/*/) $(VENV)/bin/lint-imports --no-cache --no-logo  # none for Python 3.10
	$(VENV)/bin/uv lock --check -q

docs:            ## the documentation as a site in site/, built strictly in an environment of its own
	[ -x .venvs/docs/bin/uv ] || { python3 -m venv .venvs/docs && .venvs/docs/bin/pip install -q uv; }
	UV_PROJECT_ENVIRONMENT=.venvs/docs .venvs/docs/bin/uv sync -q --frozen --inexact --only-group docs
	NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/mkdocs build --strict -q

dist: setup      ## wheel and sdist of HEAD in dist/, checked by twine; URL=https://github.com/OWNER/NAME/blob/TAG makes links absolute
	rm -rf dist
	mkdir -p dist/source
	git archive HEAD | tar -x -C dist/source
	[ -z "$(URL)" ] || sed -i -E -e 's#(!\[[^]]*\]\()docs/#\1$(subst /blob/,/raw/,$(URL))/docs/#' \
	  -e 's#(\]\()(docs/|benchmarks/|[A-Z]+\.md)#\1$(URL)/\2#g' dist/source/README.md
	$(VENV)/bin/uv build -q --out-dir dist dist/source
	rm -rf dist/source
	$(VENV)/bin/uv tool run -q 'twine>=6,<8' check --strict dist/*

clean:           ## remove what was built, keep runs/
	rm -rf $(VENV) .venvs site dist ros_ws/build ros_ws/install ros_ws/log
