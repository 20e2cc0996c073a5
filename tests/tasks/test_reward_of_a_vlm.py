"""A reward that a vision-language model judges, behind a small server that speaks OpenAI's chat
completions.
"""

import base64
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from rlinf_core.core.errors import EngineError, RecipeError
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.tasks.rewards.vlm import VLM
from rlinf_core.tasks.task import step_result
from sim_bridges.core.environments import stations

BRIGHT = 120


class Model(BaseHTTPRequestHandler):
    """Says yes of a last picture that is bright."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        *pictures, words = message["messages"][0]["content"]
        shades = [shade(picture["image_url"]["url"]) for picture in pictures]
        server.requests.append(
            (self.path, self.headers.get("Authorization"), message["model"], shades, words["text"])
        )
        server.go_on.wait(20)
        status, text = server.says or (200, "Yes." if shades[-1] > BRIGHT else " no, it is dark")
        body = (
            text
            if isinstance(text, bytes)
            else json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def shade(url):
    kind, _, data = url.partition(",")
    assert kind == "data:image/jpeg;base64"
    return round(
        float(
            cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR).mean()
        )
    )


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.requests, server.says, server.go_on = [], None, threading.Event()
    server.go_on.set()
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.go_on.set()
    server.shutdown()
    server.server_close()
    thread.join()


def asks(server, **changes):
    settings = {
        "question": "Is the light on?",
        "name": "qwen",
        "url": server.url,
        "waits": True,
        "frames": 1,
    }
    return VLM(**(settings | changes))


def frame(value, camera="front"):
    return {f"camera/{camera}/image": np.full((32, 48, 3), value, np.uint8)}


def settle(vlm):
    """Until the answer to what was asked is there."""
    vlm.answer.exception(20)


def test_one_yes_is_none_and_a_no_begins_anew(server):
    vlm = asks(server)
    successes = [vlm(frame(value)) for value in (10, 200, 10, 200, 200, 200, 10)]
    assert successes == [False, False, False, False, True, True, False]
    path, key, name, shades, words = server.requests[1]
    assert (path, key, name, shades) == ("/v1/chat/completions", None, "qwen", [200])
    assert "Is the light on?" in words and "yes or no" in words


def test_it_is_shown_the_last_frames_of_each_camera_the_oldest_first_and_none_of_the_episode_before(
    server, monkeypatch
):
    monkeypatch.setenv("KEY_OF_A_VLM", "secret")
    vlm = asks(server, frames=3, stride=2, cameras=("front", "wrist"), key_variable="KEY_OF_A_VLM")
    for value in range(10, 80, 10):
        vlm(frame(value) | frame(value + 100, "wrist"))
    assert server.requests[-1][1] == "Bearer secret"
    assert server.requests[0][3] == [10, 110] and server.requests[-1][3] == [
        30,
        130,
        50,
        150,
        70,
        170,
    ]
    vlm.begin()
    vlm(frame(20) | frame(90, "wrist"))
    assert server.requests[-1][3] == [20, 90]


def test_the_robot_does_not_wait_and_what_comes_counts_for_its_episode_alone(server):
    vlm = asks(server, waits=False, in_a_row=1)
    server.go_on.clear()
    assert [vlm(frame(200)) for _ in range(5)] == [False] * 5
    before = vlm.answer
    for _ in range(20):
        vlm.begin()
        assert not vlm(frame(10)) and vlm.answer is None, "the question before is not answered yet"
    server.go_on.set()
    assert before.exception(20) is None and before.result() is True
    assert not vlm(frame(10)) and vlm.answer is not None
    settle(vlm)
    assert len(server.requests) == 2, "one at a time"
    assert not vlm(frame(200)), "the yes was about the episode before"
    settle(vlm)
    assert vlm(frame(10)) and not vlm.trouble, "of the frame before this one"


def test_where_its_thread_may_not_leave_a_priority_it_answers_all_the_same(server, monkeypatch):
    def refuses(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuses)
    vlm = asks(server, waits=False, in_a_row=1)
    vlm(frame(200))
    assert vlm.answer.result(20) is True


@pytest.mark.parametrize(
    "says, problem",
    [
        ((500, b"out of memory"), "expected an answer, got status 500: 'out of memory'"),
        ((200, b"{"), "expected a server that answers in JSON within 10 s"),
        ((200, b'{"choices": []}'), "expected choices with a message"),
        ((200, b"[[[["), "answers in JSON"),
        ((200, "Perhaps."), "expected yes or no of 'qwen', got 'Perhaps.'"),
        ((200, "yesterday"), "expected yes or no"),
        ((200, "<think>no, wait: yes"), "expected yes or no"),
    ],
)
def test_what_is_no_answer_is_said_and_is_not_success(server, says, problem):
    vlm = asks(server, waits=False, in_a_row=1)
    server.says = says
    vlm(frame(200))
    settle(vlm)
    assert not vlm(frame(200)) and problem in vlm.trouble
    settle(vlm)
    with pytest.raises(EngineError) as error:
        asks(server)(frame(200))
    assert problem in str(error.value)
    server.says = (200, "<think>no, wait</think>\n**Yes**")
    vlm(frame(200))
    settle(vlm)
    assert vlm(frame(200)) and not vlm.trouble, "well again"


def test_a_server_that_is_not_there_or_silent_and_a_key_that_is_missing_are_said(server):
    server.go_on.clear()
    for changes, error in (
        ({"url": "http://127.0.0.1:9/v1"}, "Connection refused"),
        ({"timeout_s": 0.2}, "timed out"),
        ({"key_variable": "NO_SUCH"}, r"expected a key in \$NO_SUCH, got none"),
    ):
        with pytest.raises(EngineError, match=error):
            asks(server, **changes)(frame(200))


def task_with(tmp_path, **terms):
    (tmp_path / "reach.yaml").write_text(Path("configs/tasks/reach.yaml").read_text())
    path = tmp_path / "task.yaml"
    reward = {"kind": "vlm", "question": "Done?", "name": "m"} | terms
    path.write_text(yaml.safe_dump({"defaults": "reach", "max_steps": 900, "reward": reward}))
    return [f"station.task={path}"]


def test_a_simulated_station_is_judged_by_it_and_each_episode_begins_anew(server, tmp_path):
    overrides = task_with(tmp_path, url=server.url, waits=True, in_a_row=2)
    with pytest.raises(
        RecipeError, match="station.observe_cameras: expected 'front' among them, since the reward"
    ):
        station_task(load_recipe("demo", overrides))
    server.says = (200, "yes")
    env = stations(
        load_recipe(
            "sim_rlpd",
            [*overrides, "station.observe_cameras=[front]", "station.image_size=[24,24]"],
        ),
        1,
    )
    for seed in (0, 1):
        env.reset([seed])
        assert env.step(np.zeros((1, 3))).reward[0] == 1.0, (
            "with the first time step's, the second yes in a row"
        )
    assert len(server.requests) >= 6 and {len(shades) for *_, shades, _ in server.requests} == {
        1
    }, "none of another episode"
    env.close()


def test_a_step_that_begins_an_episode_forgets_the_last_one(server, tmp_path):
    task = station_task(
        load_recipe(
            "demo",
            [
                *task_with(tmp_path, url=server.url, waits=True, in_a_row=2),
                "station.observe_cameras=[front]",
            ],
        )
    )
    channels = frame(200)
    first = step_result(task, channels, 0)
    assert not first.success and step_result(task, channels, 1, first).success
    assert not step_result(task, channels, 0).success


@pytest.mark.parametrize(
    "terms, message",
    [
        (
            {"url": "localhost:8000"},
            "reward.url: expected an address such as http://127.0.0.1:8000/v1, got "
            "'localhost:8000'",
        ),
        (
            {"url": "http://far.example/v1", "key_variable": "KEY"},
            "expected https://, since each request contains a key",
        ),
        ({"question": ""}, "reward.question"),
        ({"frames": 0}, "reward.frames"),
        ({"in_a_row": 0}, "reward.in_a_row"),
        ({"cameras": []}, "reward.cameras"),
        ({"nam": "m"}, "did you mean 'name'"),
    ],
)
def test_a_task_that_asks_for_what_cannot_be_is_refused(tmp_path, terms, message):
    with pytest.raises(RecipeError) as error:
        station_task(load_recipe("demo", task_with(tmp_path, **terms)))
    assert message in str(error.value)
