"""ROS domains of tests: none is a person's, and no two files share one.

A station of a test has the names of a user's. In one domain, each would take the other's messages
for its own, and an arm that is simulated or real would follow both.
"""

import ast
import re

FIRST = 5  # those below are for people; 0 is the default of all of ROS
OF_ALL, OF_WORKERS = 77, range(21, 29)  # of tests that name none, in one process or several
WITHOUT_ROS = 90  # of supervisors whose processes are small programs
STARTS = {
    "Peer",
    "Quick",
    "RobotSide",
    "Supervisor",
    "domain",
    "drill",
    "only_station",
    "peer_in",
    "process_environment",
    "ros_environment",
    "standing",
}
IN_TEXT = re.compile(r"(?:domain_id[=:] ?|ROS_DOMAIN_ID=|--domain )(\d+)")


def shell_domain(worker):
    """ROS_DOMAIN_ID of the tests' own shell; ``worker`` is pytest-xdist's, such as ``gw0``."""
    number = worker.removeprefix("gw")
    return OF_WORKERS[int(number) % len(OF_WORKERS)] if number.isdecimal() else OF_ALL


def numbers(node):
    """Whole numbers in an expression, or in a text that is one."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    return [int(value) for value in values if type(value) is int or f"{value}".isdecimal()]


def domains_in(text):
    """Every domain that a source file gives to a process or a node of its own."""
    tree = ast.parse(text)
    named = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    domains = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            domains.update(*(numbers(arg) for arg in _given(node, named)))
        elif isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = zip(target.elts, value.elts, strict=False)
            domains.update(
                *(numbers(to) for name, to in pairs if "DOMAIN" in getattr(name, "id", ""))
            )
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            domains.update(*(numbers(to) for key, to in pairs if _is_variable(key)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            domains.update(map(int, IN_TEXT.findall(node.value)))
    return domains


def loses_domain(text):
    """Lines at which a process gets no ROS_DOMAIN_ID, and so that of all of ROS."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg == "env" and isinstance(node.value, ast.Dict):
            if None not in node.value.keys and not any(map(_is_variable, node.value.keys)):
                lines.append(node.value.lineno)
        elif isinstance(node, ast.Call) and node.args and _is_variable(node.args[0]):
            name, last = getattr(node.func, "attr", ""), node.args[-1]
            if name in ("delenv", "pop") or (
                name == "setenv" and getattr(last, "value", None) == ""
            ):
                lines.append(node.lineno)
    return sorted(lines)


def _is_variable(node):
    return isinstance(node, ast.Constant) and node.value == "ROS_DOMAIN_ID"


def _given(call, named):
    """Expressions that a call may give as a domain."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    yield from (word.value for word in call.keywords if word.arg in ("domain", "domain_id"))
    if name in STARTS:
        yield from call.args
    elif name == "setenv" and _is_variable(call.args[0]):
        yield call.args[1]
    elif name == "parametrize" and "domain" in (names := re.findall(r"\w+", _text(call.args[0]))):
        cases = named.get(getattr(call.args[1], "id", ""), call.args[1])
        for case in ast.walk(cases):
            if isinstance(case, ast.Tuple) and len(case.elts) == len(names):
                yield case.elts[names.index("domain")]


def _text(node):
    return node.value if isinstance(node, ast.Constant) else ""
