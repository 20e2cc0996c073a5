"""ROS domains of tests: no two test files share one, and no person uses one.

A station of a test has the same names as a user's station. In one domain each would follow the
other's messages, and so would a real arm.
"""

import ast
import re

FIRST = 5  # lower domains are for people; 0 is ROS's default
# Domains of tests that name none: in one process, or in several workers.
OF_ALL, OF_WORKERS = 77, range(21, 29)
WITHOUT_ROS = 90  # for supervisors whose processes do not use ROS
STARTS = {
    "Peer",
    "ForkingSupervisor",
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
    """Return ROS_DOMAIN_ID for a test process; ``worker`` is pytest-xdist's name, or empty."""
    number = worker.removeprefix("gw")
    return OF_WORKERS[int(number) % len(OF_WORKERS)] if number.isdecimal() else OF_ALL


def numbers(node):
    """Return the integers in an expression or in a text."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    return [int(value) for value in values if type(value) is int or f"{value}".isdecimal()]


def domains_in(text):
    """Return every domain that a source file gives to a process or node."""
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
    """Return the lines at which a process loses ROS_DOMAIN_ID, and would use ROS's default."""
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
    """Yield the expressions in a call that may be a domain."""
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
