"""Help, refusals and figures of the benchmarks; other tests run their short forms."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import (
    algorithms,
    devices,
    drills,
    fleet_learning,
    fuzz_episodes,
    large_models,
    pipelined,
    placement,
    published,
    simulators,
    swap,
    transfer,
    twin_faults,
)
from benchmarks.bridge_many import uploads_since
from rlinf_core.plan.cost import Layout
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer.progress import Clock
from tests.algorithms.learning import Run
from tests.algorithms.point import Points

COMMANDS = sorted(
    path for path in Path("benchmarks").glob("*.py") if "ArgumentParser" in path.read_text()
)


@pytest.fixture
def called(monkeypatch):
    """``main`` with these words."""

    def call(benchmark, *words):
        monkeypatch.setattr(sys, "argv", [benchmark.__file__, *map(str, words)])
        benchmark.main()

    return call


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_each_says_what_it_does_not_cover_and_what_json_is(path):
    assert "does not cover" in " ".join(ast.get_docstring(ast.parse(path.read_text())).split())
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and node.args
    ]
    (option,) = [
        node
        for node in calls
        if isinstance(node.args[0], ast.Constant) and node.args[0].value == "--json"
    ]
    assert "help" in [keyword.arg for keyword in option.keywords]


# Ctrl-C
def test_ctrl_c_in_a_run_ends_the_transfer_and_its_exit_code_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "train_command", lambda *_, **__: 130)
    with pytest.raises(SystemExit) as ended:
        transfer.run("sim_sac", tmp_path / "run")
    assert ended.value.code == 130


def test_a_run_that_was_told_to_stop_gives_no_figure_of_a_device():
    signals = []

    class Stopped(Points):
        def step(self, actions, active=None):
            # once: asked again after 2 s it would end in its midst
            if self.next > 10**6 + 20 and not signals:
                signals.append(signal.raise_signal(signal.SIGINT))
            return super().step(actions, active)

    with pytest.raises(
        SystemExit, match=r"expected a run of 3000 steps, got one that stopped early"
    ):
        devices.measure_learning("sac", "cpu", "float32", lambda recipe, size: Stopped(size))


@pytest.mark.parametrize("steps", [[], [16, 32]])
def test_a_run_that_was_told_to_stop_gives_no_rate(monkeypatch, steps):
    monkeypatch.setattr(
        pipelined,
        "train",
        lambda recipe, folder, on_progress: [
            on_progress(SimpleNamespace(steps=step, clock=Clock()), None) for step in steps
        ],
    )
    with pytest.raises(
        SystemExit, match=f"expected a run of 64 time steps, .* after {steps[-1] if steps else 0}"
    ):
        pipelined.measure(0, False, 64, 1)


def test_the_epochs_that_balance_a_pipeline_make_learning_cost_as_much_as_playing(monkeypatch):
    """In 60 s there are 16 epochs of 1 s and 44 s of playing: 44 epochs cost as much."""

    def train(recipe, folder, on_progress):
        assert recipe.algorithm.epochs == 16
        for turn in range(4):  # the last report is the evaluation's
            clock = Clock()
            clock.seconds["learn"] = 16.0 * turn
            monkeypatch.setattr(pipelined.time, "perf_counter", lambda turn=turn: 60.0 * turn)
            on_progress(SimpleNamespace(steps=64 * (turn + 1), clock=clock), None)

    monkeypatch.setattr(pipelined, "train", train)
    assert pipelined.balanced_epochs(256) == 44
    assert pipelined.measure(1, False, 256, 16).ideal_ratio == pytest.approx(60 / 44)


# Paths with signs of Hydra's grammar
def test_folders_of_the_transfer_may_have_any_name(tmp_path, monkeypatch, called):
    recipes = {}

    def run(name, folder, *overrides):
        recipes[folder.name] = load_recipe(name, list(overrides))
        return [{"success": 1.0, "env_steps": 0.0}]

    monkeypatch.setattr(transfer, "run", run)
    out = tmp_path / "it's, here=[1]"
    called(transfer, "--seeds", 0, "--out", out)
    assert recipes["fetch_tuned_0"].simulation.initial_policy == str(out / "source_0")


def test_the_folder_of_the_swapped_policy_may_have_any_name(tmp_path):
    recipe = load_recipe("demo", swap.write_recipe(tmp_path / "it's, here=[1]", 10))
    assert recipe.station.robot == str(tmp_path / "it's, here=[1]/robot")


# Drills
@pytest.mark.parametrize(
    "runs, busy", [(1, [False]), (2, [False, True]), (3, [False, False, True])]
)
def test_of_few_drills_the_longest_silence_is_of_those_that_there_are(
    tmp_path, monkeypatch, called, runs, busy
):
    busy_flags = []

    def drilled(folder, busy):
        busy_flags.append(busy)
        return {
            "requirements_held": 1,
            "traps_held": 2,
            "not_held": [],
            "longest_silence_ms": 10.0 + busy,
        }

    monkeypatch.setattr(drills, "run_drill", drilled)
    called(drills, "--runs", runs, "--json", tmp_path / "told.json")
    summary = json.loads((tmp_path / "told.json").read_text())
    assert busy_flags == busy and summary["longest_silence_ms_alone"] == 10.0
    assert summary.get("longest_silence_ms_beside_hogs") == (11.0 if any(busy) else None)


@pytest.mark.parametrize(
    "module, words, message",
    [
        (
            twin_faults,
            ["--only", "typo"],
            r"--only: expected a part of one of reflex, .*; got 'typo'",
        ),
        (twin_faults, ["--times", "0"], "--times: expected at least 1, got 0"),
        (algorithms, ["--only", "typo"], "--only: expected a part of one of PPO, .*, got 'typo'"),
        (algorithms, ["--seeds"], "--seeds: expected at least one argument"),
        (drills, ["--runs", "0"], "--runs: expected at least 1, got 0"),
    ],
)
def test_what_would_measure_nothing_is_refused(called, capsys, module, words, message):
    with pytest.raises(SystemExit) as ended:
        called(module, *words)
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err)


# What is said
def test_late_uploads_are_those_since_whatever_each_station_had_sent_before():
    policy = (0, 0.0)
    first = [([1.0, 1.0, 1.0], 0, policy), ([1.0], 0, policy), ([], 0, policy)]
    rows = [([1.0, 1.0, 1.0], 0, policy), ([1.0, 7.0], 0, policy), ([8.0, 9.0], 0, policy)]
    assert uploads_since(first, rows) == [7.0, 8.0, 9.0]


def test_the_machine_is_the_one_that_fuzzed(tmp_path, called):
    with pytest.raises(SystemExit) as ended:
        called(fuzz_episodes, "--episodes", 1, "--json", tmp_path / "told.json")
    assert not ended.value.code
    assert json.loads((tmp_path / "told.json").read_text())["cores"] == len(os.sched_getaffinity(0))


def test_curves_are_named_by_the_seeds_that_were_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(
        algorithms,
        "RUNS",
        {"PPO": lambda seed, to_its_end: Run(0.0, 1.0, 9, curve=[(0, 0.0), (9, 1.0)])},
    )
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        algorithms.draw(
            {"PPO": [algorithms.RUNS["PPO"](0, True)] * 2}, [5, 7], tmp_path / "curves.svg"
        )
    drawn = (tmp_path / "curves.svg").read_text()
    assert "seed 5" in drawn and "seed 7" in drawn and "seed 0" not in drawn


def test_why_a_simulator_could_not_be_timed_is_said(monkeypatch):
    def run(command, **_):
        if "--json" in command:
            Path(command[-1]).write_text(json.dumps({"kept": 1, "checks": 1}))
            return subprocess.CompletedProcess(command, 0, "", "")
        return subprocess.CompletedProcess(command, 1, "", "ImportError: no such simulator")

    monkeypatch.setattr(simulators.subprocess, "run", run)
    with pytest.raises(
        SystemExit, match="franka_mujoco, its cost:\nImportError: no such simulator"
    ):
        simulators.check_simulator("franka_mujoco")


LINE = """
import socket, subprocess, sys, threading, time
from benchmarks import fleet_learning

listening = socket.create_server(("127.0.0.1", 0))

def answer():
    while True:
        there, _ = listening.accept()
        got = b""
        while not got.endswith(b"."):
            got += there.recv(1 << 16)
        there.sendall(int(got[:-1].strip(b"x")) * b"y" + b".")

threading.Thread(target=answer, daemon=True).start()

def took(sent, back):
    began, got = time.monotonic(), b""
    with socket.create_connection(listening.getsockname()) as here:
        here.sendall(sent * b"x" + b"%d." % back)
        while not got.endswith(b"."):
            got += here.recv(1 << 16)
    return time.monotonic() - began

for mbit in (0, 8):
    with fleet_learning.slow_line(listening.getsockname()[1], mbit):
        if mbit:
            try:
                with fleet_learning.slow_line(1, 8):
                    print("shaped twice")
            except SystemExit as error:
                print(error, file=sys.stderr)
        print(took(500_000, 1), took(1, 500_000))
print(subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, text=True, check=True).stdout)
"""


def test_a_line_is_slow_both_ways_and_gone_at_the_end():
    script = 'ip link set lo up; exec "$0" -c "$1"'
    alone = ["unshare", "--net", "bash", "-ec"]  # a loopback of its own
    if (
        not shutil.which("tc")
        or subprocess.run(
            [*alone, "ip link set lo up; tc qdisc add dev lo root htb"], capture_output=True
        ).returncode
    ):
        pytest.skip(
            "not possible here: a network namespace, and tc's htb in it (root, iproute2, sch_htb)"
        )
    ran = subprocess.run(
        [*alone, script, sys.executable, LINE],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    assert ran.returncode == 0, ran.stderr
    assert (
        "a loopback without a shaper (tc qdisc del dev lo root removes one); tc qdisc add dev lo root"
        in ran.stderr
    )
    _, slow, left = ran.stdout.split("\n", 2)
    assert all(float(seconds) > 0.4 for seconds in slow.split()), (
        "0.5 s at 8 Mbit/s, less what a bucket holds"
    )
    assert "noqueue" in left and "htb" not in left


def test_a_line_where_none_may_shape_one_is_refused(monkeypatch):
    monkeypatch.setenv("PATH", "")
    error = (
        "--line: expected permission to shape this machine's loopback with tc .root, iproute2., "
        ".*without a shaper .*; tc qdisc add"
    )
    with pytest.raises(SystemExit, match=error), fleet_learning.slow_line(50551, 8):
        pytest.fail("not slow at all")


@pytest.mark.slow
def test_large_models_are_measured_in_small(tmp_path, called):
    pytest.importorskip(
        "transformers", reason="the extra vla: transformers has none for Python 3.10"
    )
    called(
        large_models,
        "--quick",
        "--device",
        "cpu",
        "--views",
        1,
        "--ways",
        "eager_float32",
        "eager",
        "--json",
        tmp_path / "said.json",
    )
    timings = json.loads((tmp_path / "said.json").read_text())
    assert (
        0 < timings["pi0_1_views_eager_off"] < 0.1 and timings["pi0_1_views_eager_float32_off"] == 0
    )
    assert all(
        timings[f"{name}_ms"] > 0
        for name in ("pi0_1_views_transformers", "openvla_eager", "openvla_oft_eager")
    )
    assert {
        "pi0_sft_full_bfloat16_recompute_s",
        "openvla_sft_lora_bfloat16_s",
        "pi0_grpo_lora_update_s",
        "openvla_grpo_lora_draw_s",
    } <= timings.keys()


def test_a_tour_of_layouts_counts_changes_and_their_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(placement.Tour, "layouts", [Layout(1), Layout(2)], raising=False)
    tour = placement.Tour(placement.recipe_of("mlp"), tmp_path, [].append)
    tour.record_change(Layout(2), 0.5)
    assert tour.change_s == [0.5]


def test_published_rows_count_the_last_step_alone_and_what_is_published_within_the_budget(
    monkeypatch,
):
    steps = iter([0.0] * 150 + [1.0] * 48 + [0.0, 0.0])  # success is left again at the end
    env = SimpleNamespace(
        step=lambda action: (np.zeros(3), 0.5, False, False, {"success": next(steps)}),
        reset=lambda **_: (np.zeros(3), {}),
    )
    one = object.__new__(published.Published)
    one.env = env
    one.reset()
    played = [one.step(np.zeros(2)) for _ in range(100)]
    assert [row[3] for row in played] == [False] * 99 + [True]
    assert played[0][1] == 1.0 and not any(row[4]["success"] for row in played)
    rows = [(100_000, 0.4, 1.0), (200_000, 0.6, 2.0)]
    assert (
        published.steps_to(rows, 0.5) == 200_000
        and published.steps_to(rows, 0.9) == published.NEVER
    )
    assert published.over_published({"reach": 200_000, "push": published.NEVER}, 200_000) == 1.0
    assert np.isnan(published.over_published({"push": 100_000}, 200_000))
