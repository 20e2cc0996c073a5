"""Check the adapters with the packages that they adapt, in an environment of its own.

RLINF_AGENTIC_VENV/bin/python tests/agentic/peers.py verifiers|trl|mcp
"""

import asyncio
import json
import sys

from rlinf_core.agentic.adapters import TRL, Verifiers
from rlinf_core.agentic.environment import ToolError
from rlinf_core.agentic.tools import MCPTools


def call(name, arguments, number=0):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": f"c{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
        ],
    }


def text(content):
    return {"role": "assistant", "content": content}


def verifiers():
    import verifiers as vf
    from datasets import Dataset

    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: first number
            b: second number
        """
        return a + b

    def right(completion, answer) -> float:
        return float(completion[-1]["content"].strip() == answer)

    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)]
    rubric = vf.Rubric(funcs=[right], weights=[1.0])
    environment = Verifiers(
        environment=vf.ToolEnv(
            dataset=Dataset.from_list(rows), tools=[add], rubric=rubric, max_turns=5
        )
    )
    scene = environment.reset(6)
    assert scene.messages[-1]["content"] == "2 + 1?", scene
    schema = scene.tools[0].schema()["function"]
    assert schema["name"] == "add" and set(schema["parameters"]["properties"]) == {"a", "b"}
    step = environment.step(call("add", {"a": 2, "b": 1}))
    assert step.messages[0]["role"] == "tool" and step.messages[0]["content"] == "3", step
    assert not step.done and step.agent == scene.agent
    step = environment.step(text("3"))
    assert step.done and step.reward == 1.0 and step.metrics["right"] == 1.0, step
    for answer, reward in (("1", 1.0), ("x", 0.0)):  # a second episode, and one after a break
        environment.reset(1)
        environment.reset(0)
        assert environment.step(text(answer)).reward == reward
    single = Verifiers(environment=vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric))
    single.reset(3)
    assert single.step(text("4")).reward == 1.0

    class Guess(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **_):
            return [{"role": "user", "content": "higher"}]

    guess = Verifiers(
        environment=Guess(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=2)
    )
    guess.reset(0)
    assert [message["content"] for message in guess.step(text("0")).messages] == ["higher"]
    assert guess.step(text("1")).reward == 1.0


def trl():
    """Return the classes of TRL's documentation, and the probe that TRL's trainer makes of them."""
    import inspect

    from trl.trainer import grpo_trainer

    source = inspect.getsource(grpo_trainer)
    assert 'member_name == "get_reward"' in source and "instance = factory()" in source

    class Counter:
        def __init__(self):
            self.count = 0

        def reset(self, goal: int = 0, **kwargs):
            self.count, self.goal = 0, goal
            return f" Goal: {goal}."

        async def increment(self, step: int) -> int:
            """Increment the counter.

            Args:
                step: by how much
            """
            if step < 0:
                raise ValueError("no negative step")
            self.count += step
            return self.count

        def get_reward(self) -> float:
            return float(self.count == self.goal)

    def shortness(completions, goal, **_):
        return [0.5 * (len(talk) < 6) + 0 * goal[0] for talk in completions]

    rows = [{"prompt": [{"role": "user", "content": "Count."}], "goal": 3}]
    environment = TRL(environment=Counter, rows=rows, reward_functions=[shortness])
    scene = environment.reset(5)
    assert scene.messages[0]["content"] == "Count. Goal: 3." and [t.name for t in scene.tools] == [
        "increment"
    ]
    assert rows[0]["prompt"][0]["content"] == "Count."
    assert environment.step(call("increment", {"step": 3})).messages[0]["content"] == "3"
    assert (
        "no negative step"
        in environment.step(call("increment", {"step": -1})).messages[0]["content"]
    )
    assert environment.step(text("done")).reward == 1.5


SERVER = '''
from mcp.server.mcpserver import MCPServer
server = MCPServer("numbers")

@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b

@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("on purpose")

server.run("stdio")
'''


def mcp():
    try:
        import mcp.server.mcpserver  # noqa: F401

        program = SERVER
    except ImportError:
        program = SERVER.replace(
            "mcp.server.mcpserver import MCPServer", "mcp.server.fastmcp import FastMCP"
        ).replace("MCPServer(", "FastMCP(")
    with MCPTools(sys.executable, ["-c", program]) as server:
        tools = {tool.name: tool for tool in server.tools}
        assert (
            set(tools) == {"multiply", "fail"}
            and tools["multiply"].description == "Multiply two numbers."
        )
        assert set(tools["multiply"].parameters["properties"]) == {"a", "b"}
        assert tools["multiply"]('{"a": 6, "b": 7}') == "42"
        for name, arguments in (("fail", "{}"), ("multiply", '{"a": "x"}'), ("multiply", "[")):
            try:
                tools[name](arguments)
            except ToolError as error:
                assert str(error)
            else:
                raise AssertionError(name)
        assert asyncio.iscoroutinefunction(tools["multiply"].function) is False
    try:
        with MCPTools(sys.executable, ["-c", "import sys; sys.exit(1)"], timeout_s=20):
            raise AssertionError
    except Exception as error:
        assert "expected its tools" in str(error), error


if __name__ == "__main__":
    {"verifiers": verifiers, "trl": trl, "mcp": mcp}[sys.argv[1]]()
    print("equal")
