"""The online coder: completions keep their ids; feedback counts once, or is refused and counted."""

import asyncio
import copy
import os
import signal
import subprocess
import sys
import threading

import pytest

aiohttp = pytest.importorskip("aiohttp")

from rlinf_core.agentic.completion_server import (  # noqa: E402
    WAITING,
    CompletionServer,
    client_tokens,
)
from rlinf_core.agentic.engines.base import Engine, Generation  # noqa: E402
from rlinf_core.agentic.feedback import Feedback, FeedbackError, FeedbackStore  # noqa: E402

pytestmark = pytest.mark.timed


class Codec:
    stop_ids = (0,)

    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, tokens):
        return "".join(map(chr, tokens))


class Fixed(Engine):
    """Draws ``text``; waits for ``gate``."""

    def __init__(self, text="return a + b\nprint(1)\0"):
        self.text, self.requests, self.gate, self.version = text, [], threading.Event(), 3
        self.gate.set()

    def generate(self, requests):
        self.gate.wait(20)
        self.requests += requests
        tokens = list(map(ord, self.text))
        return [
            Generation(
                tokens[: r.max_new_tokens],
                [-0.5] * len(tokens[: r.max_new_tokens]),
                "stop" if r.max_new_tokens >= len(tokens) else "length",
                self.version,
            )
            for r in requests
        ]

    def update(self, policy, version):
        self.version = version


@pytest.fixture
def store(tmp_path):
    store = FeedbackStore(tmp_path / "online.sqlite3")
    yield store
    store.close()


GENERATION = Generation([1, 2], [-0.1, -0.2], "stop", 7)


def test_feedback_is_given_out_in_its_order_behind_the_last_one(store, tmp_path):
    names = [store.record("ann", [9, 8], GENERATION) for _ in range(3)]
    for name in (names[2], names[0]):
        store.accept("ann", name, 1.0)
    first = store.waiting(10)
    assert [served.id for served in first] == [names[2], names[0]]
    assert (first[0].prompt, first[0].tokens) == ([9, 8], [1, 2])
    assert (first[0].log_probs, first[0].version, first[0].arrival) == ([-0.1, -0.2], 7, 1)
    again = FeedbackStore(tmp_path / "online.sqlite3")
    assert again.waiting(10) == first and again.waiting(1) == first[:1]
    store.accept("ann", names[1], 0.0)
    assert [served.id for served in store.waiting(10, after=1)] == [names[0], names[1]]
    store.prune()
    assert len(store.waiting(10)) == 3
    assert os.stat(tmp_path / "online.sqlite3").st_mode & 0o077 == 0


def test_a_run_that_goes_on_learns_from_each_once(store):
    published = []
    source = Feedback(store, 2, published.append)
    for number in range(5):
        store.accept("ann", store.record("ann", [number], GENERATION), 1.0)
    rollout = source.take(3, {}).rollouts[0]
    assert rollout.actions[0, :, :, 0].tolist() == [[0, 1, 2], [1, 1, 2]] and published == [3]
    assert rollout.counted[0].tolist() == [[0.0, 1.0, 1.0]] * 2
    state = source.state_dict()
    assert source.take(4, {}).rollouts[0].actions[0, :, 0, 0].tolist() == [2, 3]
    assert source.take(5, {}).rollouts == [], "one is too few"
    again = Feedback(store, 2, published.append)
    again.load_state_dict(state)
    assert again.take(4, {}).rollouts[0].actions[0, :, 0, 0].tolist() == [2, 3]
    assert again.counts() == {
        "feedback_served": 5.0,
        "feedback_accepted": 5.0,
        "feedback_reward": 1.0,
    }


def test_each_refusal_has_a_name_and_is_counted(store):
    name, other, old = (store.record("ann", [1], GENERATION) for _ in range(3))
    store.accept("ann", name, 0.0)
    store._database.execute("UPDATE completions SET served = served - 90000 WHERE id = ?", (old,))
    for client, wanted, reward, reason in [
        ("ann", "cmpl-forged", 1.0, "unknown"),
        ("bob", other, 1.0, "foreign"),
        ("ann", name, 1.0, "doubled"),
        ("ann", old, 1.0, "late"),
        ("ann", other, 2.0, "malformed"),
        ("ann", other, float("nan"), "malformed"),
        ("ann", "' OR 1=1 --", 1.0, "unknown"),
    ]:
        with pytest.raises(FeedbackError, match=f"^{reason}:"):
            store.accept(client, wanted, reward)
    assert store.counts() == {
        "served": 3,
        "accepted": 1,
        "unknown": 2,
        "foreign": 1,
        "doubled": 1,
        "late": 1,
        "malformed": 2,
    }
    assert [served.reward for served in store.waiting(9)] == [0.0]


def test_doubled_feedback_of_many_threads_and_processes_counts_once(store, tmp_path):
    name = store.record("ann", [1], GENERATION)
    others = [FeedbackStore(tmp_path / "online.sqlite3") for _ in range(4)]
    results = []

    def give(one):
        try:
            one.accept("ann", name, 1.0)
            results.append("accepted")
        except FeedbackError as error:
            results.append(error.reason)

    threads = [threading.Thread(target=give, args=(one,)) for one in [*others, store] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["accepted", *["doubled"] * 9]
    assert store.counts() == {"served": 1, "accepted": 1, "doubled": 9}


def test_a_killed_server_loses_no_feedback(tmp_path):
    code = (
        "import sys\nfrom rlinf_core.agentic.feedback import FeedbackStore\n"
        "from rlinf_core.agentic.engines.base import Generation\n"
        "store = FeedbackStore(__import__('pathlib').Path(sys.argv[1]))\n"
        "while True:\n    name = store.record('ann', [1], Generation([2], [-1.0], 'stop', 1))\n"
        "    store.accept('ann', name, 1.0)\n    print(name, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "s.sqlite3"], stdout=subprocess.PIPE, text=True
    )
    names = [process.stdout.readline().strip() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    names += [
        line.strip() for line in process.stdout.read().splitlines() if len(line) == len(names[0])
    ]
    process.wait()
    store = FeedbackStore(tmp_path / "s.sqlite3")
    stored = [served.id for served in store.waiting(10_000)]
    assert stored[: len(names)] == names and len(stored) <= len(names) + 1


def serve(store, engine, play, codec=None, **options):
    """Run ``play(post)`` beside a server; ``post(path, body, token)`` returns status and answer."""

    async def run():
        server = CompletionServer(
            engine, codec or Codec(), store, {"ann": "a" * 40, "bob": "b" * 40}, **options
        )
        async with (
            server.listening() as port,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):

            async def post(path, body, token="a" * 40, method="POST"):
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                async with session.request(
                    method,
                    f"http://127.0.0.1:{port}{path}",
                    headers=headers,
                    **({"data": body} if isinstance(body, bytes) else {"json": body}),
                ) as answer:
                    text = await answer.text()
                    is_json = "json" in answer.content_type
                    return answer.status, __import__("json").loads(text) if is_json else text

            await play(post, server)

    asyncio.run(run())


def test_a_completion_over_the_network_is_learned_as_it_was_drawn(store):
    engine = Fixed()

    async def play(post, server):
        status, answer = await post("/v1/completions", {"prompt": "def f", "max_tokens": 100})
        choice = answer["choices"][0]
        assert (
            status == 200
            and choice["text"] == "return a + b\nprint(1)"
            and choice["finish_reason"] == "stop"
        )
        assert (await post("/v1/feedback", {"id": answer["id"], "accepted": True}))[0] == 200
        status, cut = await post("/v1/completions", {"prompt": "def f", "stop": ["\n"]})
        assert cut["choices"][0]["text"] == "return a + b"
        assert (await post("/v1/feedback", {"id": cut["id"], "reward": 0.25}))[0] == 200
        status, stream = await post("/v1/completions", {"prompt": "x", "stream": True})
        assert stream.startswith("data: {") and stream.endswith("data: [DONE]\n\n")
        assert (await post("/v1/models", {}, method="GET"))[1]["data"][0]["version"] == 3

    serve(store, engine, play)
    full, cut = store.waiting(9)
    assert "".join(map(chr, full.tokens)) == engine.text and full.prompt == list(map(ord, "def f"))
    assert "".join(map(chr, cut.tokens)) == "return a + b\n" and len(cut.log_probs) == 13
    assert (full.reward, cut.reward, full.version, full.client) == (1.0, 0.25, 3, "ann")


def test_requests_of_others_and_nonsense_are_refused(store):
    async def play(post, server):
        _, answer = await post("/v1/completions", {"prompt": "a"})
        name = answer["id"]
        for body, token, status in [
            ({"id": name, "accepted": True}, "", 401),
            ({"id": name, "accepted": True}, "x" * 40, 401),
            ({"id": name, "accepted": True}, "b" * 40, 403),
            ({"id": "cmpl-1", "accepted": True}, "a" * 40, 404),
            ({"id": name, "accepted": "yes"}, "a" * 40, 400),
            ({"id": name}, "a" * 40, 400),
            ({"id": name, "reward": 7}, "a" * 40, 400),
            ({"id": name, "reward": 10**400}, "a" * 40, 400),
            ({"id": "\ud800", "accepted": True}, "a" * 40, 400),
            ({"id": "x" * 10**5, "accepted": True}, "a" * 40, 400),
            ({"id": name, "accepted": True}, "\u00e9" * 40, 401),
            ([], "a" * 40, 400),
            (b"{", "a" * 40, 400),
            (b"[" * 100_000, "a" * 40, 400),
            ({"id": name, "accepted": True}, "a" * 40, 200),
            ({"id": name, "accepted": True}, "a" * 40, 409),
        ]:
            assert (await post("/v1/feedback", body, token))[0] == status, body
        for body in (
            {"prompt": ""},
            {"prompt": [1, 2]},
            {"prompt": "a", "max_tokens": 0},
            {"prompt": "a", "n": 2},
            {"prompt": "a", "stop": 3},
            {"prompt": "a", "seed": "x"},
            {"prompt": "\ud800"},
            {"prompt": "a", "stop": ["\ud800"]},
            {"prompt": "a" * 2000},
            {},
        ):
            assert (await post("/v1/completions", body))[0] == 400, body
        assert (await post("/v1/completions", {"prompt": "a"}, ""))[0] == 401
        assert (await post("/v1/feedback", b" " * (2 << 20)))[0] in (400, 413)
        counts = (await post("/v1/counts", {}, method="GET"))[1]
        assert (counts["accepted"], counts["doubled"], counts["foreign"], counts["unknown"]) == (
            1,
            1,
            1,
            1,
        )

    serve(store, Fixed(), play)
    assert len(store.waiting(9)) == 1


def test_feedback_is_stored_while_the_trainer_learns_and_completions_wait(store):
    engine = Fixed()

    async def play(post, server):
        _, answer = await post("/v1/completions", {"prompt": "a"})
        with server.engine_lock:  # as an update of the weights does
            waiting = asyncio.create_task(post("/v1/completions", {"prompt": "b"}))
            status, _ = await post("/v1/feedback", {"id": answer["id"], "accepted": False})
            assert status == 200 and not waiting.done()
            assert len(store.waiting(9)) == 1
            engine.update(None, 4)
        status, later = await waiting
        assert status == 200
        await post("/v1/feedback", {"id": later["id"], "accepted": True})

    serve(store, engine, play)
    assert [served.version for served in store.waiting(9)] == [3, 4]


def test_too_many_requests_are_told_to_come_again(store):
    engine = Fixed()
    engine.gate.clear()

    async def play(post, server):
        tasks = [
            asyncio.create_task(post("/v1/completions", {"prompt": "a"}))
            for _ in range(WAITING + 80)
        ]
        while sum(task.done() for task in tasks) < 20:
            await asyncio.sleep(0.01)
        engine.gate.set()
        statuses = [(await task)[0] for task in tasks]
        assert set(statuses) == {200, 429}

    serve(store, engine, play)


def test_an_engine_that_fails_answers_503_and_goes_on(store):
    class Failing(Fixed):
        def generate(self, requests):
            if not self.requests:
                self.requests.append(None)
                raise RuntimeError("out of memory")
            return super().generate(requests)

    async def play(post, server):
        assert (await post("/v1/completions", {"prompt": "a"}))[0] == 503
        assert (await post("/v1/completions", {"prompt": "a"}))[0] == 200

    serve(store, Failing(), play)


def test_tokens_of_clients_are_files_of_their_owner(tmp_path):
    tokens = client_tokens(tmp_path, ["ann", "bob"])
    assert tokens == client_tokens(tmp_path, ["ann", "bob"]) and len(set(tokens.values())) == 2
    assert (tmp_path / "ann.token").stat().st_mode & 0o077 == 0


PROMPTS = ("def area", "def total", "for item")


@pytest.mark.slow
def test_a_hidden_rule_is_learned_from_feedback(tmp_path):
    """A user accepts one of two styles. Acceptance rises from about a fifth to at least 80 %."""
    first, last = acceptance(tmp_path, seed=0, updates=60)
    assert first < 0.4 and last >= 0.8


def acceptance(folder, seed, updates):
    """Acceptance of the first and the last 64 completions over HTTP, between them ``updates``."""
    torch = pytest.importorskip("torch")
    from rlinf_core.agentic.engines.in_process import InProcessEngine
    from rlinf_core.algorithms import algorithm
    from rlinf_core.policies.pretrained.language import Config, Policy
    from rlinf_core.specs.arrays import TextSpec

    torch.manual_seed(seed)
    policy = Policy(TextSpec(), Config())
    codec = policy.tokenizer
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-3)
    drawn = torch.Generator().manual_seed(seed)
    for _ in range(60):
        texts = [
            (
                PROMPTS[int(torch.randint(3, (1,), generator=drawn))],
                " # ok" if float(torch.rand(1, generator=drawn)) < 0.2 else " # no",
            )
            for _ in range(32)
        ]
        rows = [
            (codec.encode(prompt), [*codec.encode(text), codec.stop_ids[0]])
            for prompt, text in texts
        ]
        longest = max(len(prompt) + len(text) for prompt, text in rows)
        tokens, counted = torch.zeros(32, longest, dtype=torch.long), torch.zeros(32, longest)
        for index, (prompt, text) in enumerate(rows):
            tokens[index, : len(prompt) + len(text)] = torch.tensor([*prompt, *text])
            counted[index, len(prompt) : len(prompt) + len(text)] = 1.0
        optimiser.zero_grad()
        policy.imitation_loss({"executed": counted}, tokens.unsqueeze(-1)).backward()
        optimiser.step()
    part = algorithm("reinforce")
    learner = part.Learner(policy, part.Config(learning_rate=5e-4, epochs=1, minibatches=1))
    engine, store = InProcessEngine(copy.deepcopy(policy)), FeedbackStore(folder / "online.sqlite3")
    rates = []

    async def play(post, server):
        def publish(version):
            with server.engine_lock:
                engine.update(copy.deepcopy(policy), version)

        source = Feedback(store, 64, publish)
        for update in range(updates):
            posts = [
                post(
                    "/v1/completions",
                    {"prompt": PROMPTS[n % 3], "max_tokens": 8, "seed": update * 64 + n},
                )
                for n in range(64)
            ]
            answers = [answer for _, answer in await asyncio.gather(*posts)]
            accepted = [answer["choices"][0]["text"] == " # ok" for answer in answers]
            rates.append(sum(accepted) / 64)
            given = [
                post("/v1/feedback", {"id": answer["id"], "accepted": bool(value)})
                for answer, value in zip(answers, accepted, strict=True)
            ]
            assert all(status == 200 for status, _ in await asyncio.gather(*given))
            experience = await asyncio.to_thread(source.take, update, {})
            assert experience.steps == 64
            await asyncio.to_thread(learner.update, experience.rollouts[0])

    serve(store, engine, play, codec=codec)
    return rates[0], rates[-1]
