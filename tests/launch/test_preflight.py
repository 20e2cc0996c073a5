"""The preflight reports what this machine lacks for its part, before it makes a folder."""

import math
import re
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlinf_core.cli.demo import check_and_write, next_steps
from rlinf_core.cli.main import main
from rlinf_core.core.errors import BridgeError, RecipeError, RlinfError
from rlinf_core.episodes.spool import Spool
from rlinf_core.launch import preflight
from rlinf_core.launch.preflight import check_page, check_policy_device, check_report, check_trainer
from rlinf_core.launch.supervisor import only_station
from rlinf_core.page.access import Web
from rlinf_core.policies import torch_device
from rlinf_core.recipes import load_recipe
from tests.messages import record

pytestmark = pytest.mark.usefixtures("default_port_free")
NOWHERE = "/not/there"
OF_THE_TRAINER = {
    "placement.learners=500": "500 learners are 500 processes; this machine has 2 CPUs, which are "
    "enough for 16",
    "placement.ingest=200": "200 processes of ingest are 200 processes; this machine has 2 CPUs",
    "placement={learners: 2, learner_gpus: 1.0}": "2 x 1 + 0 x 0 = 2 GPUs; this machine has 0",
    "placement.learners=3": "sft.batch_size: expected a multiple of 3, since 3 processes "
    "(placement.learners) learn from "
    "as many rows each; got 256",
    "placement={learners: 4} algorithm.batch_size=260": "algorithm.batch_size: expected a multiple "
    "of 8, since 4 processes "
    "(placement.learners) learn from as many rows each in each of two",
    "device=cuda:1": "device: expected auto, cpu, or one of the 0 GPUs of this machine, got "
    "'cuda:1'",
    f"simulation.initial_policy={NOWHERE}": f"simulation.initial_policy: {NOWHERE}: expected a "
    f"policy-*.safetensors",
    f"collect.recordings=[{NOWHERE}]": f"collect.recordings: expected recorded episodes (rosbag2 "
    f"folders) in {NOWHERE}",
    f"bridge.fleet={NOWHERE}": f"bridge.fleet: expected the folder of a fleet, got {NOWHERE} "
    f"without ca.crt",
}
OF_ANY = {
    "evaluate.episodes=0": "'evaluate.episodes': expected",
    "placement.ray=nonsense": "'placement.ray': expected host:port, or nothing",
    "device=banana": "'device': expected auto, cpu, cuda",
    "station.device=banana": "'station.device': expected auto, cpu, cuda",
}
OF_THE_STATION = {
    f"bridge.credentials={NOWHERE}": f"bridge.credentials: expected {NOWHERE} to have ca.crt"
}
OF_ITS_POLICY = {
    "station.device=cuda": "station.device: expected auto, cpu, or one of the 0 GPUs of this "
    "machine"
}
BY = {
    "demo": OF_THE_TRAINER | OF_ANY | OF_THE_STATION | OF_ITS_POLICY,
    "train": OF_THE_TRAINER | OF_ANY,
    "up": OF_ANY | OF_THE_STATION | OF_ITS_POLICY,
    "collect": OF_ANY | OF_THE_STATION,
}


def split(text):
    return re.split(r"(?<=[}\d]) (?=\w+\.)", text)  # several overrides


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Return a machine with two CPUs and no GPU."""
    monkeypatch.setattr(preflight.os, "cpu_count", lambda: 2)
    for module in (torch_device, preflight):
        monkeypatch.setattr(module, "gpus", lambda: 0)


@pytest.mark.parametrize(
    "command, overrides, message",
    [(command, *refusal) for command, every in BY.items() for refusal in every.items()],
)
def test_what_is_missing_here_is_refused_before_a_folder_is_made(
    command, overrides, message, tmp_path, capsys
):
    # the setting may be right, the file is not
    of_a_file = overrides.startswith(("simulation.initial_policy", "bridge."))
    code = main([command, "demo", "--out", str(tmp_path / "run"), "--set", *split(overrides)])
    assert code == (1 if of_a_file else 2)
    error = capsys.readouterr().err
    assert error.startswith("rlinf: ") and message in error and not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["demo", "train"])
def test_a_port_in_use_is_refused_before_a_folder_is_made(command, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert (
            main([command, "demo", "--out", str(tmp_path / "run"), "--set", f"bridge.port={port}"])
            == 1
        )
    assert (
        f"bridge: cannot listen on 127.0.0.1:{port}: Address already in use"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()
    with socket.create_server(("127.0.0.1", port)):  # one that listens to nobody needs none
        check_trainer(load_recipe("sim_sac", [f"bridge.port={port}"]), tmp_path)


@pytest.mark.parametrize("command", ["demo", "up", "collect"])
def test_the_page_of_another_station_is_not_shown_as_ones_own(command, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        free = ["--set", "bridge.host=127.0.0.9"]  # whoever trains beside this test
        assert (
            main([command, "demo", "--out", str(tmp_path / "run"), "--web", str(port), *free]) == 1
        )
    output = capsys.readouterr()
    assert (
        f"station.web.port: expected a free port on 127.0.0.1, got {port}: Address already in use"
        in output.err
    )
    assert "http://" not in output.out and not (tmp_path / "run").exists()
    check_page(Web(port=port))
    check_page(Web())


@pytest.mark.parametrize("command", ["up", "demo"])
def test_what_is_refused_beside_a_station_of_that_name_leaves_what_that_has_written(
    command, tmp_path, capsys
):
    check_and_write(load_recipe("demo", ["station.domain_id=104"]), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with only_station("station_a", 104):
        assert (
            main(
                [
                    command,
                    "demo",
                    "--out",
                    str(tmp_path),
                    "--set",
                    "station.domain_id=104",
                    "bridge.host=127.0.0.9",
                    "collect.episodes=3",
                ]
            )
            == 1
        )
    assert "station 'station_a' is already running in ROS_DOMAIN_ID 104" in capsys.readouterr().err
    assert {
        path.name: path.read_bytes() for path in tmp_path.iterdir()
    } == before and "recipe.yaml" in before


@pytest.mark.parametrize(
    "recipe, overrides, message",
    [
        (
            "sim_iql",
            ["simulation.environments=0", "collect.recordings=[runs/x]"],
            "expected one for stations, got one that learns from collect.recordings alone (iql). "
            "Run `rlinf train sim_iql`",
        ),
        ("sim_sac", [], "expected one for stations, got simulation.environments = "),
    ],
)
def test_a_demo_is_of_what_stations_feed(recipe, overrides, message, tmp_path, capsys):
    assert main(["demo", recipe, "--out", str(tmp_path / "run"), "--set", *overrides]) == 2
    assert (
        f"recipe {recipe}: {message}" in capsys.readouterr().err and not (tmp_path / "run").exists()
    )


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".com"])
def test_what_is_no_hosts_name_is_refused_in_words(host, tmp_path):
    with pytest.raises(
        BridgeError,
        match=f"bridge: cannot listen on {host}:50551: expected a host's name or address, got",
    ):
        check_trainer(
            load_recipe("demo", [f"bridge.host={host}", "bridge.insecure=true"]), tmp_path
        )


@pytest.mark.parametrize(
    "lacks, message",
    [
        (
            ["matplotlib"],
            "rlinf run: expected matplotlib, for the report at its end, not installed here. Run: "
            ".venv/bin",
        ),
        (["torch"], "expected torch, .*Or record no film: --set evaluate.filmed_episodes=0"),
    ],
)
def test_what_its_report_lacks_is_told_before_a_run_is_directed(
    lacks, message, tmp_path, monkeypatch, capsys
):
    for package in lacks:
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["run", "demo", "--out", str(tmp_path / "run")]) == 1
    assert re.search(message, capsys.readouterr().err) and not (tmp_path / "run").exists()
    check_report(load_recipe("demo", ["collect.no_training=true"]), "rlinf run")


def test_a_station_is_not_asked_for_what_the_trainer_needs(tmp_path):
    recipe = load_recipe(
        "demo",
        [
            overrides
            for overrides_text in [*OF_THE_TRAINER][2:]
            for overrides in split(overrides_text)
        ],
    )
    check_and_write(recipe, tmp_path / "run")
    check_policy_device(recipe)
    assert (tmp_path / "run/recipe.yaml").exists()


def test_a_director_is_not_asked_for_the_stations_credentials(tmp_path):
    recipe = load_recipe("demo", [*OF_THE_STATION])
    check_and_write(recipe, tmp_path, starts=False)
    with pytest.raises(Exception, match="bridge.credentials"):
        check_and_write(recipe, tmp_path)


@pytest.mark.parametrize("backend", ["local", "composed"])
def test_a_policy_that_plays_here_needs_its_device(backend):
    with pytest.raises(RecipeError, match="station.device: expected .*cuda:99"):
        check_policy_device(
            load_recipe("demo", ["station.device=cuda:99", f"station.policy.backend={backend}"])
        )


def test_a_policy_that_a_server_answers_for_needs_no_device():
    remote = load_recipe(
        "demo", ["station.device=cuda", "station.policy={backend: remote, address: 'ws://a:1'}"]
    )
    check_policy_device(remote)


def test_what_is_there_is_enough(tmp_path, task):
    record(Spool(tmp_path / "spool"), task.spec, "a-1").close()
    check_trainer(
        load_recipe("demo", [f"collect.recordings=[{tmp_path}]", "placement.learners=16"]), tmp_path
    )


def test_a_cluster_elsewhere_is_asked_by_the_trainer_alone(tmp_path):
    check_trainer(load_recipe("demo", ["placement={learners: 64, ray: '10.0.0.1:6379'}"]), tmp_path)


def test_a_run_that_goes_on_has_read_its_recordings(tmp_path):
    recipe = load_recipe("demo", [f"collect.recordings=[{NOWHERE}]"])
    checkpoint = tmp_path / "checkpoints/00000001-updates-1"
    checkpoint.mkdir(parents=True)
    with pytest.raises(RecipeError, match="collect.recordings"):
        check_trainer(recipe, tmp_path)
    (checkpoint / "state.json").touch()
    check_trainer(recipe, tmp_path)


@pytest.mark.parametrize(
    "installed, visible, others, most",
    [
        (4, None, False, 4),
        (4, "0,2", False, 2),
        (4, "", False, 0),
        (1, "0,1,2", True, 1),
        (0, None, False, 0),
        (0, None, True, math.inf),
        (None, None, False, 0),
        (None, "0", True, math.inf),
    ],
)
def test_gpus_are_counted_as_far_as_one_can_without_torch(
    installed, visible, others, most, monkeypatch
):
    monkeypatch.undo()

    def library(name):
        if installed is None:
            raise OSError(name)
        return SimpleNamespace(
            nvmlInit_v2=lambda: 0,
            nvmlShutdown=lambda: 0,
            nvmlDeviceGetCount_v2=lambda count: setattr(count._obj, "value", installed),
        )

    monkeypatch.setattr(torch_device.ctypes, "CDLL", library)
    monkeypatch.setattr(torch_device.Path, "exists", lambda path: others)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert torch_device.gpus() == most


@pytest.mark.parametrize(
    "overrides, recommended",
    [
        (["station.operator={kind: keyboard}"], True),
        ([], False),
        (["station.operator={kind: keyboard}", "station.web.port=8080"], False),
    ],
)
def test_no_second_operator_is_recommended_beside_a_page(overrides, recommended):
    steps = next_steps(load_recipe("demo", overrides), "demo", overrides, Path("runs/a station"))
    assert ("rlinf teleop" in steps) == recommended
    assert re.search(r"rlinf run demo .*--out 'runs/a station' ", steps), "one report of both"


INSTALL = ".venv/bin/python scripts/install.py"


@pytest.mark.parametrize(
    "lacks, filmed, words",
    [
        (["matplotlib"], 3, f"matplotlib, {{}} Run: {INSTALL} report"),
        (["matplotlib"], 0, f"matplotlib, {{}} Run: {INSTALL} report"),
        (["imageio"], 3, f"imageio, {{}} Run: {INSTALL} report. {{film}}"),
        (["torch"], 3, f"torch, {{}} Run: {INSTALL} report policy. {{film}}"),
        (["matplotlib", "torch"], 3, f"matplotlib, torch, {{}} Run: {INSTALL} report policy"),
        (["torch", "imageio"], 3, f"imageio, torch, {{}} Run: {INSTALL} report policy. {{film}}"),
        (["torch", "imageio"], 0, None),
        ([], 3, None),
    ],
)
def test_each_package_that_a_report_lacks_is_named_with_its_extra(
    lacks, filmed, words, monkeypatch
):
    for package in lacks:
        monkeypatch.setitem(sys.modules, package, None)
    recipe = load_recipe("demo", [f"evaluate.filmed_episodes={filmed}"])
    if words is None:
        return check_report(recipe, "rlinf run")
    with pytest.raises(RlinfError) as error:
        check_report(recipe, "rlinf run")
    assert str(error.value) == "rlinf run: expected " + words.format(
        "for the report at its end, not installed here.",
        film="Or record no film: --set evaluate.filmed_episodes=0",
    )


def test_a_port_is_free_or_the_reason_is_that_of_the_machine():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert preflight.listen_failure("127.0.0.1", port) == "Address already in use"
        with pytest.raises(RecipeError) as error:
            check_page(Web(port=port))
        assert error.value.code == "RL-E205" and f"got {port}: Address already in use" in str(
            error.value
        )
    assert (
        preflight.listen_failure("127.0.0.1", port)
        == ""
        == preflight.listen_failure("localhost", 0)
    )
    assert preflight.listen_failure("192.0.2.1", 0) == "Cannot assign requested address"
    assert preflight.listen_failure("a..b", 1).startswith(
        "expected a host's name or address, got 'a..b'"
    )


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1"])
def test_a_trainer_may_listen_by_ip_of_either_version(host, tmp_path):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        other = socket.create_server((host.strip("[]"), 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with other:
        port = other.getsockname()[1]
        recipe = load_recipe("demo", [f"bridge.host='{host}'", f"bridge.port={port}"])
        with pytest.raises(BridgeError) as error:
            check_trainer(recipe, tmp_path)
        assert error.value.code == "RL-E205"
        assert str(error.value).startswith(f"bridge: cannot listen on {host}:{port}: Address alr")
    check_trainer(recipe, tmp_path)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["sft.batch_size=255"], "sft.batch_size"),
        (["algorithm.batch_size=258"], "algorithm.batch_size"),
        (["algorithm.batch_size=257", "sft.batch_size=257", "placement.learners=0"], ""),
        ([], ""),
    ],
)
def test_a_batch_is_shared_by_all_learners(overrides, words, tmp_path):
    recipe = load_recipe("demo", ["placement.learners=4", *overrides])
    if not words:
        return preflight._check_batches(recipe)
    with pytest.raises(RecipeError, match=f"^{words}: expected a multiple of"):
        preflight._check_batches(recipe)


def test_a_policy_that_a_run_begins_from_replaces_the_warm_start(tmp_path):
    recipe = load_recipe(
        "demo",
        [
            *("placement.learners=4", "sft.batch_size=255"),
            f"simulation.initial_policy={tmp_path}",
        ],
    )
    preflight._check_batches(recipe)


def test_a_trainer_makes_its_token_where_the_recipe_names_it(tmp_path):
    file = tmp_path / "token"
    check_trainer(load_recipe("demo", [f"bridge.token_file={file}"]), tmp_path / "run")
    assert len(file.read_text().strip()) >= 32 and file.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "run").exists()
