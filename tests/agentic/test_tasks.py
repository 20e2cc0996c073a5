"""Tasks: reachable answers, reproducible seeds, no leak, a reward that programs cannot forge."""

import json

import pytest

from rlinf_core.agentic.environment import LEAD, TextEnvironment
from rlinf_core.agentic.jail import JailError, run_program
from rlinf_core.agentic.tasks import text_task, text_tasks
from rlinf_core.agentic.tasks.arithmetic import EVALUATION
from rlinf_core.agentic.tasks.planner import HELD_OUT as HELD_OUT_SENTENCES
from rlinf_core.agentic.tasks.planner import (
    NOUNS,
    OPENINGS,
    SENTENCES,
    Planner,
    SharedRobot,
    StandIn,
)
from rlinf_core.agentic.tasks.programs import INTEGERS, LISTS, Programs, program_text
from rlinf_core.agentic.tasks.search import HELD_OUT, PAIRS, TRAINED, Search, call_message
from rlinf_core.agentic.tasks.wide import Wide, item_f1
from rlinf_core.agentic.tools import SearchIndex
from rlinf_core.core.errors import RecipeError

try:
    run_program("")
    CLOSED = ""
except JailError as error:
    CLOSED = str(error)
needs_jail = pytest.mark.skipif(bool(CLOSED), reason=CLOSED)
KINDS = [
    ("search", {}),
    ("search", {"hops": 3, "max_turns": 5, "digits": 4}),
    ("planner", {"robot": "stand_in"}),
    pytest.param("programs", {}, marks=needs_jail),
    pytest.param("programs", {"kind": "lists", "examples": 2}, marks=needs_jail),
    ("wide", {}),
    ("wide", {"sub_agents": 0}),
    ("wide", {"cells": 8, "sub_agents": 8}),
]


def play(environment, seed, speak=None):
    """All messages of an episode by agent, and its reward and metrics."""
    scene = environment.reset(seed)
    talks, agent, total, step = {scene.agent: list(scene.messages)}, scene.agent, 0.0, None
    for _ in range(100):
        message = (speak or environment.expert)()
        talks[agent].append(message)
        step = environment.step(message)
        total += step.reward
        if step.done:
            return talks, total, step
        agent = step.agent
        talks.setdefault(agent, []).extend(step.messages)
    raise AssertionError("the episode does not end")


@pytest.mark.parametrize("name, options", KINDS)
def test_a_scripted_solver_gets_the_whole_reward_and_a_seed_gives_the_same_episode(name, options):
    environment = text_task(name, options)()
    assert isinstance(environment, TextEnvironment)
    for seed in (0, 1, 2, 3, EVALUATION.start + 5):
        talks, reward, step = play(environment, seed)
        assert reward == 1.0 and not step.truncated
        again, reward, _ = play(text_task(name, options)(), seed)
        assert again == talks and reward == 1.0
    assert play(environment, 0)[0] != talks


@pytest.mark.parametrize("name, options", KINDS)
def test_the_answer_is_not_in_the_prompt(name, options):
    environment = text_task(name, options)()
    schemas = set()
    for seed in range(30):
        scene = environment.reset(seed)
        schemas.add(json.dumps([tool.schema() for tool in scene.tools]))
        secrets = {
            "search": lambda: [environment.answer],
            "wide": lambda: environment.truth.values(),
            "planner": lambda: [json.dumps(environment.plan)],
            "programs": lambda: [environment.solution],
        }[name]()
        text = json.dumps(scene.messages)
        assert not any(secret in text for secret in secrets)
    assert len(schemas) == 1


def test_only_the_tool_knows_the_code():
    codes = {}
    for seed in range(300):
        environment = Search()
        environment.reset(seed)
        codes.setdefault(environment.path[0], set()).add(environment.answer)
    assert sum(len(values) > 1 for values in codes.values()) > 60
    guessed = Search()
    assert (
        sum(
            play(guessed, seed, lambda: {"role": "assistant", "content": "37"})[1]
            for seed in range(400)
        )
        < 14
    )


def test_held_out_names_are_in_no_training_episode():
    assert not set(HELD_OUT) & set(TRAINED) and set(HELD_OUT) | set(TRAINED) == set(PAIRS)
    words = [{word for pair in pairs for word in pair.split()} for pairs in (TRAINED, HELD_OUT)]
    assert words[1] <= words[0]
    drawn = {name for seed in range(200) for name in _names(Search(), seed)}
    assert drawn <= set(TRAINED) and _names(Search(), EVALUATION.start) <= set(HELD_OUT)


def _names(environment, seed):
    environment.reset(seed)
    return set(environment.path)


def test_the_last_number_is_the_answer():
    environment = Search()
    environment.reset(3)
    right = environment.answer
    wrong = "00" if right != "00" else "01"
    assert environment.score(f"I think {wrong}, no: {right}.") == 1.0
    assert (
        environment.score(f"{right} or {wrong}")
        == environment.score("")
        == environment.score(f"1{right}")
        == 0.0
    )


@pytest.mark.parametrize(
    "query",
    [
        '"',
        "a OR b NOT",
        "text:",
        "*",
        "NEAR(a b)",
        "'; DROP TABLE documents; --",
        "^a -b",
        "ä" * 400,
    ],
)
def test_no_query_breaks_the_index(query):
    index = SearchIndex(["The code of red fox is 1.", "b"])
    assert isinstance(index.search(query), str)
    assert index.search("fox red", 1) == "The code of red fox is 1."
    assert index.search("elk") == "no document"


def test_rank_puts_the_document_with_more_words_first():
    index = SearchIndex(["grey fox", "red elk", "red fox"])
    assert index.search("red fox").splitlines()[0] == "red fox"


@needs_jail
@pytest.mark.parametrize(
    "program",
    [
        "import sys\ndef f(x): sys.exit(0)",
        "def f(x): return x\nraise SystemExit(0)",
        "import os\nos._exit(0)",
        "def f(x):\n    print(x)\n    return None",
        "def f(x):\n    import json\n    json.dumps = lambda *a, **k: '0'\n    return 1",
        "import os\nfor i in range(8): os.write(3, f'{i} 0\\n'.encode())\ndef f(x): return 0",
        "open('reward.txt', 'w').write('1')\ndef f(x): return True",
        "class A(int):\n    __hash__, __eq__ = None, lambda *a: True\ndef f(x): return A(0)",
        "class A(str):\n    __hash__, __eq__ = None, lambda *a: True\ndef f(x): return A('a')",
        "import builtins\nbuiltins.f = lambda x: 0\ndef f(x): return f",
        "f = 3",
        "def f(x",
        "x = " + "(" * 5000,
        "def f(x):\n    while True: pass",
        "lambda: 0",
        "",
    ],
)
def test_a_program_that_does_not_solve_gets_nothing(program):
    environment = Programs(wall_s=1.5)
    environment.reset(5)
    assert environment.score(program) == environment.score(f"```python\n{program}\n```") == 0.0


@needs_jail
def test_only_program_and_inputs_enter_the_jail(monkeypatch):
    jobs = []

    def spy(*job):
        jobs.append(job)
        return run_program(*job)

    monkeypatch.setattr("rlinf_core.agentic.tasks.programs.run_program", spy)
    environment = Programs(kind="lists")
    environment.reset(1)
    assert environment.score("[x]") == 0.0
    inputs = [[value] for value in environment.inputs]
    assert jobs == [(program_text("[x]"), "f", inputs, environment.limits)]


@needs_jail
def test_each_problem_is_solved_by_its_solution_alone():
    for kind, problems in (("integers", INTEGERS), ("lists", LISTS)):
        seeds = {}
        for seed in range(100):
            environment = Programs(kind=kind)
            text = environment.reset(seed).messages[0]["content"]
            for index, (statement, _, _) in enumerate(problems):
                seeds.setdefault(index, seed) if statement.split("{")[0].strip() in text else None
        assert len(seeds) == len(problems)
        for seed in seeds.values():
            environment = Programs(kind=kind)
            environment.reset(seed)
            assert environment.score(environment.solution) == 1.0
    environment = Programs(kind="lists")
    environment.reset(0)
    assert (
        environment.score(
            f"Here it is:\n```python\ndef f(x):\n    return {environment.solution}\n```\nDone."
        )
        == 1.0
    )


@needs_jail
def test_the_programs_tool_shows_what_a_program_prints():
    environment = Programs(with_tool=True)
    environment.reset(0)
    step = environment.step(call_message("run", json.dumps({"program": "print(6 * 7)\n1/0"})))
    assert (
        step.messages[0]["content"].startswith("42\n")
        and "ZeroDivisionError" in step.messages[0]["content"]
    )
    assert not step.done


def test_the_program_of_an_answer():
    assert program_text("x + 1") == "def f(x):\n    return (x + 1\n)"
    assert program_text("a\n```py\ndef f(x):\n    return 1\n```\nb") == "def f(x):\n    return 1"
    assert program_text("f = abs") == "f = abs"


def test_sub_agents_have_conversations_of_their_own():
    environment = Wide(cells=3, sub_agents=3)
    talks, reward, step = play(environment, 2)
    assert list(talks) == [LEAD, "sub_1", "sub_2", "sub_3"] and reward == 1.0
    assert step.metrics == {"item_f1": 1.0, "table": 1.0, "sub_agents": 3.0, "turns": 8.0}
    for number, name in enumerate(environment.truth, 1):
        prompt, call, result, answer = talks[f"sub_{number}"]
        assert name in prompt["content"] and environment.truth[name] in result["content"]
        others = [other for other in environment.truth if other != name]
        assert not any(other in json.dumps(prompt) for other in others)
        assert talks[LEAD][1 + number]["content"] == answer["content"] == environment.truth[name]


def test_one_sub_agent_too_many_is_refused_and_a_silent_one_ends():
    environment = Wide(cells=2, sub_agents=1, sub_turns=2)
    environment.reset(0)
    two = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            call_message("delegate", json.dumps({"question": "a"}), number)["tool_calls"][0]
            for number in range(2)
        ],
    }
    step = environment.step(two)
    assert step.agent == "sub_1" and step.tools and not step.done
    step = environment.step(call_message("search", '{"query": "a"}'))
    assert step.agent == "sub_1" and not step.tools
    step = environment.step(call_message("search", '{"query": "a"}'))
    assert step.agent == LEAD and [message["content"][:5] for message in step.messages] == [
        "error",
        "error",
    ]
    assert (
        "at most 1 sub-agents" in step.messages[1]["content"]
        and "gave no answer" in step.messages[0]["content"]
    )
    end = environment.step(
        {
            "role": "assistant",
            "content": f"{next(iter(environment.truth))}: {next(iter(environment.truth.values()))}",
        }
    )
    assert end.done and end.reward == pytest.approx(2 / 3)


def test_the_lead_has_a_bound_on_turns():
    environment = Wide(lead_turns=2, sub_agents=0)
    _, reward, step = play(environment, 0, lambda: call_message("search", '{"query": "x"}'))
    assert step.truncated and reward == 0.0


def test_item_f1():
    assert item_f1({}, {"a": "1"}) == 0.0
    assert item_f1({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == 0.5
    assert item_f1({"a": "1", "z": "2"}, {"a": "1"}) == pytest.approx(2 / 3)


def test_a_wrong_name_or_option_is_refused():
    with pytest.raises(RecipeError, match="did you mean 'search'"):
        text_task("serch", {})
    with pytest.raises(RecipeError, match="hopps"):
        text_task("search", {"hopps": 1})()
    for name, options in (
        ("search", {"hops": 0}),
        ("programs", {"kind": "sets"}),
        ("wide", {"cells": 0}),
        ("planner", {"robot": "stand_in", "policy": "p.safetensors"}),
    ):
        with pytest.raises(RecipeError, match="text.options"):
            text_task(name, options)()
    assert {"search", "programs", "wide", "planner"} <= set(text_tasks())


def test_examples_are_the_messages_of_a_right_episode():
    for name, options, roles in (
        ("programs", {}, "a"),
        ("planner", {"robot": "stand_in"}, None),
    ):
        environment = text_task(name, options)()
        environment.reset(3)
        got = "".join(message["role"][0] for message in environment.example())
        assert got == roles if roles else got == "at" * len(environment.plan) + "a"


def test_the_planner_is_paid_for_places_and_not_for_words():
    environment = Planner(robot="stand_in")
    done = {"role": "assistant", "content": "done"}
    seed = next(
        seed for seed in range(99) if environment.reset(seed) and len(environment.plan) == 3
    )
    for order, reward in (
        (environment.plan, 1.0),
        (environment.plan[:2], 0.0),
        (environment.plan[::-1][:1], 0.0),
        ([*environment.plan, environment.plan[0]], 0.0),
        ([], 0.0),
    ):
        environment.reset(seed)
        for place in order:
            call = call_message("instruct", json.dumps({"instruction": f"to the {place} mark"}))
            assert environment.step(call).messages[0]["content"] == "done"
        assert environment.step(done).reward == reward
    environment.reset(seed)
    both = call_message("instruct", json.dumps({"instruction": "to the red and the blue mark"}))
    assert environment.step(both).messages[0]["content"] == "not done" and not environment.visited


def test_a_planners_trace_is_written_beside_the_episode(tmp_path):
    environment = Planner(robot="stand_in", trace_folder=str(tmp_path))
    for _ in range(2):
        play(environment, 1)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["episode-1-0.json", "episode-1-1.json"]
    trace = json.loads(files[0].read_text())
    assert trace["reward"] == 1.0 and trace["visited"] == trace["plan"] == environment.plan
    assert [played["place"] for played in trace["instructions"]] == environment.plan


def test_held_out_sentences_ask_for_plans_that_occur_in_training():
    plans = [
        {plan for index, (_, plan) in enumerate(SENTENCES) if (index in HELD_OUT_SENTENCES) == held}
        for held in (True, False)
    ]
    assert plans[0] <= plans[1]
    environment = Planner(robot="stand_in")
    texts = [
        {environment.reset(first + seed).messages[0]["content"] for seed in range(200)}
        for first in (0, EVALUATION.start)
    ]
    assert not texts[0] & texts[1] and len(texts[0]) > 100 and len(texts[1]) > 50
    held_out = [SENTENCES[index][0] for index in HELD_OUT_SENTENCES]
    assert len(held_out) == len(SENTENCES) // 4
    for opening in OPENINGS:
        assert any(sentence.startswith(opening) for sentence in held_out)
    for noun in NOUNS:
        assert any(noun in sentence for sentence in held_out)


def test_random_examples_of_the_planner_teach_the_form_and_not_the_meaning():
    def places(environment, seed):
        environment.reset(seed)
        calls = [
            call for message in environment.example() for call in message.get("tool_calls", [])
        ]
        texts = [json.loads(call["function"]["arguments"])["instruction"] for call in calls]
        return tuple(text.split()[-2] for text in texts)

    right, drawn = Planner(robot="stand_in"), Planner(robot="stand_in", examples="random")
    assert all(places(right, seed) == tuple(_plan(right, seed)) for seed in range(50))
    plans = [places(drawn, seed) for seed in range(300)]
    assert plans == [places(drawn, seed) for seed in range(300)], "a scene has one example"
    assert set(plans) == {
        *(("red",), ("blue",), ("red", "blue"), ("blue", "red")),
        *(("red", "blue", "red"), ("blue", "red", "blue")),
    }
    hits = sum(plan == tuple(_plan(drawn, seed)) for seed, plan in enumerate(plans))
    assert 30 <= hits <= 80, "one in six by chance"
    with pytest.raises(RecipeError, match="text.options.examples: expected right or random"):
        Planner(robot="stand_in", examples="wrong")


def test_the_planners_robot_has_few_scenes_and_others_in_evaluation():
    def layouts(first, **options):
        environment = Planner(robot="stand_in", **options)
        drawn = set()
        for seed in range(first, first + 200):
            environment.reset(seed)
            drawn.add(environment.layout)
        return drawn

    first = EVALUATION.start
    assert layouts(0) == set(range(64)) and layouts(0, layouts=3) == {0, 1, 2}
    assert layouts(first, layouts=3) == {first, first + 1, first + 2}
    with pytest.raises(RecipeError, match="text.options.layouts: expected at least 1, got 0"):
        Planner(robot="stand_in", layouts=0)


def test_equal_instructions_in_a_layout_are_carried_out_once():
    environment = Planner(robot="stand_in", layouts=1)
    environment.robot = SharedRobot(CountingRobot())
    call = call_message("instruct", json.dumps({"instruction": "go to the red mark"}))
    for seed in (0, 1, 2):
        environment.reset(seed)
        assert environment.step(call).messages[0]["content"] == "done"
    assert environment.robot.robot.plays == 1


def test_a_simulated_arm_carries_out_a_plan_of_three():
    pytest.importorskip("mujoco")
    environment = Planner()
    seed = next(seed for seed in range(99) if len(_plan(environment, seed)) == 3)
    _, reward, step = play(environment, seed)
    assert reward == 1.0 and 6 < step.metrics["robot_steps"] < 90
    paths = [played["path"] for played in environment.trace]
    assert all(path and len(path[0]) == 3 for path in paths)
    assert Planner().robot is environment.robot, "all conversations of a process share one robot"


class CountingRobot(StandIn):
    """Remembers its way since the last reset, and counts the instructions that it carried out."""

    plays = 0

    def reset(self, seed):
        super().reset(seed)
        self.history = [seed]

    def carry_out(self, instruction):
        CountingRobot.plays += 1
        self.history.append(instruction)
        return {**super().carry_out(instruction), "path": list(self.history)}


def test_conversations_share_a_robot_and_each_keeps_its_scene():
    """Turns in other scenes come between. Equal instructions in one scene are played once."""
    robot = SharedRobot(CountingRobot())
    assert robot.carry_out(1, ("red",))["path"] == [1, "red"]
    assert robot.carry_out(2, ("blue",))["path"] == [2, "blue"]
    assert robot.carry_out(1, ("red", "blue"))["path"] == [1, "red", "blue"]
    plays = CountingRobot.plays
    assert robot.carry_out(1, ("red", "blue"))["path"] == [1, "red", "blue"]
    assert robot.carry_out(2, ("blue",))["place"] == "blue" and CountingRobot.plays == plays
    assert robot.carry_out(1, ("red", "blue", "red"))["path"] == [1, "red", "blue", "red"]
    assert CountingRobot.plays == plays + 1
    with pytest.raises(AttributeError):
        robot.carry_out(3, (None,))  # the robot fails in another scene
    assert robot.carry_out(1, ("red", "blue", "red", "blue"))["path"][0] == 1


def _plan(environment, seed):
    environment.reset(seed)
    return environment.plan
