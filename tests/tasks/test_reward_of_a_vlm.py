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
from sim_bridges.core.environments import make_environments

BRIGHT = 120


class Model(BaseHTTPRequestHandler):
    """Says yes of a last picture that is bright."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        *pictures, words = message["messages"][0]["content"]
        shades = [shade(picture["image_url"]["url"]) for picture in pictures]
        server.messages.append((dict(self.headers), message))
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
    server.messages = []
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
    """Wait for the answer to the last question."""
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


def test_the_thread_that_asks_has_no_priority_over_others(server, monkeypatch):
    priorities = []

    def record(process, policy, parameters):
        priorities.append((process, policy, parameters.sched_priority))

    monkeypatch.setattr(os, "sched_setscheduler", record)
    asks(server)(frame(200))
    assert priorities == [(0, os.SCHED_OTHER, 0)]


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


def test_a_request_is_one_of_chat_completions(server, monkeypatch):
    monkeypatch.setenv("KEY_OF_A_VLM", "secret")
    vlm = asks(server, url=server.url + "/", key_variable="KEY_OF_A_VLM", cameras=("a", "b"))
    red, blue = np.zeros((16, 24, 3), np.uint8), np.zeros((16, 24, 3), np.uint8)
    red[:, :, 0], blue[:, :, 2] = 250, 250
    vlm({"camera/a/image": red, "camera/b/image": blue})
    headers, message = server.messages[0]
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer secret"
    assert server.requests[0][0] == "/v1/chat/completions", "one slash"
    (user,) = message.pop("messages")
    assert message == {"model": "qwen", "temperature": 0.0} and user["role"] == "user"
    *pictures, words = user["content"]
    assert words["type"] == "text" and "now. Is the light on? Answer with" in words["text"]
    assert [picture["type"] for picture in pictures] == ["image_url"] * 2
    for picture, colour in zip(pictures, (2, 0), strict=True):  # OpenCV's order is blue first
        data = base64.b64decode(picture["image_url"]["url"].partition(",")[2])
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert image.shape == (16, 24, 3) and image[8, 12].argmax() == colour
        assert image[8, 12].max() > 200


def test_what_is_not_said_is_as_documented():
    vlm = VLM(question="q", name="n")
    assert (vlm.url, vlm.channels) == ("http://127.0.0.1:8000/v1", ("camera/front/image",))
    assert (vlm.stride, vlm.in_a_row, vlm.waits, vlm.timeout_s) == (5, 2, False, 10.0)
    assert (vlm.key_variable, vlm.trouble, vlm.yes, vlm.is_local) == ("", "", 0, True)
    assert vlm.history.maxlen == 6 and vlm.answer is None and vlm.running is None
    assert VLM(question="q", name="n", frames=3, stride=2).history.maxlen == 5
    both = VLM(question="q", name="n", cameras=("a", "b"), url="https://far.example/v1/")
    assert both.channels == ("camera/a/image", "camera/b/image") and both.cameras == ("a", "b")
    assert (both.url, both.is_local) == ("https://far.example/v1", False)


@pytest.mark.parametrize(
    "url, key, error",
    [
        ("http://127.0.0.1:8000/v1", "KEY", ""),
        ("http://localhost:8000/v1", "KEY", ""),
        ("http://[::1]:8000/v1", "KEY", ""),
        ("https://far.example/v1", "KEY", ""),
        ("http://far.example/v1", "", ""),
        ("http://far.example/v1", "KEY", "reward.url: expected https://, .*, got 'http://far.exam"),
        ("ftp://far.example/v1", "", "reward.url: expected an address such as .*, got 'ftp://far"),
        ("http:///v1", "", "reward.url: expected an address such as .*, got 'http:///v1'"),
        ("far\n.example", "", r"expected an address .*, got 'far\\n.example'"),
    ],
)
def test_a_key_goes_to_this_machine_or_through_tls_alone(url, key, error):
    if not error:
        assert VLM(question="q", name="n", url=url, key_variable=key).url == url
        return
    with pytest.raises(RecipeError, match=error):
        VLM(question="q", name="n", url=url, key_variable=key)


@pytest.mark.parametrize("key", ["", "sch\u00fcssel", "a\nb"])
def test_a_key_that_no_header_can_hold_is_none(server, monkeypatch, key):
    monkeypatch.setenv("KEY_OF_A_VLM", key)
    vlm = asks(server, key_variable="KEY_OF_A_VLM")
    with pytest.raises(
        EngineError, match=r"^reward.key_variable: expected a key in \$KEY_OF_A_VLM"
    ):
        vlm(frame(200))
    assert not server.requests


@pytest.mark.parametrize(
    "says, problem",
    [
        ((404, b"x" * 300), f"got status 404: '{'x' * 200}'"),
        ((500, b"a\n\xff"), r"got status 500: 'a\n\ufffd'"),
        ((200, b'{"choices": [{"message": {}}]}'), "got '{'choices': [{'message': {}}]}'"),
        ((200, b'{"choices": [{"text": 1}]}'), "expected choices with a message, got '{'choices'"),
        ((200, b"[1]"), "expected choices with a message, got '[1]'"),
        ((200, b"x" * 300), "that answers in JSON within 10 s, got 'Expecting value: line 1 col"),
        ((200, "perhaps " * 50), f"got '{('perhaps ' * 50)[:200]}'. Change the question"),
        ((200, "a\nb"), r"got 'a\nb'"),
    ],
)
def test_an_answer_of_another_kind_is_shown_in_part(server, says, problem):
    server.says = says
    with pytest.raises(EngineError) as error:
        asks(server)(frame(200))
    assert str(error.value).startswith(f"{server.url}: expected ") and problem in str(error.value)


@pytest.mark.parametrize(
    "text, yes",
    [
        ("yes", True),
        ("YES!", True),
        (" **Yes**, it is", True),
        ("No", False),
        ("no yes", False),
        ("<think>no</think>Yes", True),
        ("<think>yes</think> no.", False),
        ("a</think>b</think>yes", True),
    ],
)
def test_the_first_word_after_the_thoughts_decides(server, text, yes):
    server.says = (200, text)
    assert asks(server, in_a_row=1)(frame(200)) is yes


def test_another_defect_of_an_answer_names_the_server_too(server, monkeypatch):
    vlm = asks(server)
    with pytest.raises(EngineError, match=f"^{server.url}: .*expected|^{server.url}: "):
        vlm({"camera/front/image": np.zeros((0, 0, 3), np.uint8)})
    assert vlm.yes == 0 and vlm.trouble.startswith(f"{server.url}: ")


def test_a_question_under_way_keeps_no_process_from_ending(server):
    vlm = asks(server, waits=False)
    server.go_on.clear()
    before = set(threading.enumerate())
    vlm(frame(200))
    (asking,) = [
        thread for thread in set(threading.enumerate()) - before if "_answer" in thread.name
    ]
    assert asking.daemon
    server.go_on.set()
    settle(vlm)


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
    env = make_environments(
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
