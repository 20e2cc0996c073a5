"""The documentation says what the code says."""

import ast
import json
import re
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml

from rlinf_core.config.checking import PATTERNS
from rlinf_core.launch.graph import check_operator
from rlinf_core.recipes import Recipe, check_recipe, load_recipe, station_task
from rlinf_core.recipes.sources import STATIONS, source_of
from rlinf_core.robots.config import load_robot
from rlinf_core.tasks.task import with_shaping

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks/results/README.md",
]


@pytest.fixture(scope="module")
def generated():
    """Return the reference's pages and the schemas, by a process of their own."""
    code = "import json, reference; print(json.dumps([reference.pages(), reference.schemas()]))"
    return json.loads(
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            cwd=ROOT / "scripts",
            capture_output=True,
            text=True,
        ).stdout
    )


def test_the_reference_is_what_the_code_says(generated):
    written = {
        page.stem: page.read_text()
        for page in (ROOT / "docs/reference").glob("*.md")
        if page.stem != "safety_evidence"
    }
    assert generated[0] == written, "run python scripts/reference.py"


def test_the_support_matrix_is_what_its_data_say():
    """The script refuses a part of the code without a row, and a test that does not exist."""
    code = "import support_matrix, sys; sys.stdout.write(support_matrix.page())"
    written = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
    )
    assert written.stdout == (ROOT / "docs/support_matrix.md").read_text(), (
        "run python scripts/support_matrix.py"
    )


@pytest.mark.parametrize(
    "page, rows",
    [
        (
            "README.md",
            ("simulators", "algorithms", "vision-language-action models", "language models"),
        ),
        ("README.zh.md", ("仿真器", "算法", "视觉-语言-动作模型", "语言模型")),
    ],
)
def test_the_front_page_counts_simulators_algorithms_models_and_recipes(page, rows):
    """The counts are those of the support matrix, the table of VLA models and configs/."""
    from rlinf_core.algorithms import algorithms

    groups = yaml.safe_load((ROOT / "docs/support_matrix.yaml").read_text())
    (simulators,) = (group["rows"] for group in groups if group.get("kind") == "simulators")
    ran = Counter(row["ran"] for row in simulators)
    absent = (ran["stand-in"], ran[False])
    expected = {
        rows[0]: [len(simulators), len(simulators) - sum(absent), *absent],
        rows[1]: [len(algorithms())],
        rows[2]: [len(vla_families())],
        rows[3]: [len([*ROOT.glob("configs/text_*.yaml")]), 3],
    }
    text = (ROOT / page).read_text()
    counts = {
        name: sorted(int(number) for number in re.findall(r"\d+", row)[: len(expected[name])])
        for name in rows
        for row in re.findall(rf"^\| {name} \| (.*) \|$", text, re.M)
    }
    assert counts == {name: sorted(numbers) for name, numbers in expected.items()}


def vla_families():
    """Return the kinds in the first table of the page of VLA models."""
    page = (ROOT / "docs/howto/vla.md").read_text().split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", page, re.M)


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_front_page_stays_short(page):
    assert len((ROOT / page).read_text().splitlines()) <= 80


def test_the_page_of_vla_models_has_every_family_and_counts_them():
    folders = {path.parent.name for path in ROOT.glob("rlinf_core/policies/pretrained/*/policy.py")}
    assert sorted(vla_families()) == sorted(folders - {"act", "diffusion", "language"})
    page = (ROOT / "docs/howto/vla.md").read_text()
    assert f"all {len(vla_families())} families ran with random weights" in page


def test_the_gallery_and_its_curves_are_what_their_data_say():
    code = """import json, gallery
curves = json.loads(gallery.CURVES.read_text())
drawn = {name: gallery.curve(points, name not in curves) for name in gallery.recipes()
         if (points := curves.get(name) or gallery.ends(name))}
print(json.dumps([gallery.page(), drawn]))"""
    written = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
    )
    page, drawn = json.loads(written.stdout)
    assert page == (ROOT / "docs/simulators/gallery.md").read_text(), (
        "run python scripts/gallery.py --only"
    )
    assert drawn == {
        path.stem.removesuffix("_curve"): path.read_text()
        for path in (ROOT / "docs/images/gallery").glob("*_curve.svg")
    }


def test_the_schemas_for_editors_are_what_the_code_says_and_every_shipped_file_fits_its_own(
    generated,
):
    schemas = generated[1]
    for name, schema in schemas.items():
        assert json.loads((ROOT / f"docs/{name}.schema.json").read_text()) == schema, (
            "run python scripts/reference.py"
        )
    drills = set(ROOT.glob("configs/drill*.yaml"))
    recipes = [
        *(set(ROOT.glob("configs/*.yaml")) - drills),
        *ROOT.glob("configs/simulators/*.yaml"),
    ]
    kinds = {
        "recipe": recipes,
        "task": ROOT.glob("configs/tasks/*.yaml"),
        "scenarios": drills,
        "hand_eye": ROOT.glob("robots/*/hand_eye.yaml"),
        **{
            name: [
                *ROOT.glob(f"robots/*/{name}.yaml"),
                *ROOT.glob(f"sim_bridges/simulators/*/*/{name}.yaml"),
            ]
            for name in ("robot", "limits")
        },
    }
    validators = {
        name: jsonschema.validators.validator_for(schema)(schema)
        for name, schema in schemas.items()
    }
    for name, files in kinds.items():
        validators[name].check_schema(schemas[name])
        for path in files:
            assert f"docs/{name}.schema.json" in path.read_text().splitlines()[0], path
            validators[name].validate(yaml.safe_load(path.read_text()))
    for name, wrong in (
        ("recipe", {"sede": 1}),
        ("recipe", {"algorithm": {"name": "ppo", "group": 3}}),
        ("robot", {"driver": "external", "limits": "limits.yaml", "estop": ["a"]}),
        (
            "robot",
            {"driver": "simulator", "limits": "l", "simulator": "gym_hil", "options": {"a": 1}},
        ),
        ("task", {"max_steps": 0}),
        ("hand_eye", {"camera": {}}),
        ("scenarios", []),
        ("scenarios", [{"name": "a", "expect": "ACTIVE", "inject": {"route": "a", "kind": "dr"}}]),
    ):
        with pytest.raises(jsonschema.ValidationError):
            validators[name].validate(wrong)


def test_what_does_not_fit_a_pattern_is_told_in_words():
    schemas = "".join(path.read_text() for path in ROOT.glob("docs/*.schema.json"))
    patterns = re.findall(r'"pattern": "(.*)"', schemas) + re.findall(r'"(\^.*)": {', schemas)
    assert {json.loads(f'"{pattern}"') for pattern in patterns} <= PATTERNS.keys() and len(
        patterns
    ) > 20


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M
    )
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading)).lower().replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize(
    "page",
    [
        *PAGES,
        *(ROOT / name for name in ("CHANGELOG.md", "SECURITY.md")),
        *sorted(ROOT.glob("ros_ws/src/rlinf*/README.md")),
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_and_pictures_exist(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text()):
        if not target.startswith("http"):
            target_page = page.parent / target if target else page
            assert target_page.exists() and (
                not anchor or target_page.suffix != ".md" or anchor in anchors(target_page)
            ), (target, anchor)


def test_the_files_for_a_real_arm_are_taken_as_the_pages_have_them(tmp_path):
    part = (
        (ROOT / "docs/robots/index.md")
        .read_text()
        .split("## A task for a real arm")[1]
        .split("\n##")[0]
    )
    task, recipe = re.findall(r"```yaml\n(.*?)```", part, re.S)
    _, by_hand = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/howto/rewards.md").read_text(), re.S
    )
    (tmp_path / "by_hand.py").write_text(by_hand)
    (tmp_path / "task.yaml").write_text(task)
    (tmp_path / "recipe.yaml").write_text(recipe)
    loaded = load_recipe(str(tmp_path / "recipe.yaml"))
    check_recipe(loaded)
    check_operator(loaded)
    assert "object_pose" not in station_task(loaded).channels, "nobody says it at an arm"
    assert "object_pose" in station_task(load_recipe("demo_vision")).channels, "as the page says"


def test_the_reward_with_progress_of_the_page_shapes_a_task(tmp_path):
    near, _ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/rewards.md").read_text(), re.S)
    (tmp_path / "near.py").write_text(near)
    (tmp_path / "task.yaml").write_text("defaults: reach\nreward: {kind: ./near.py:Near}\n")
    task = with_shaping(
        station_task(load_recipe("sim_ppo", [f"station.task={tmp_path}/task.yaml"])), 1.0
    )
    at_goal, away = (
        task.success.progress({"current_pose": np.full(7, x), "goal_pose": np.zeros(7)})
        for x in (0.0, 0.1)
    )
    assert at_goal == 1.0 > away > 0.0


def test_the_ur5e_of_the_page_is_that_of_robots_but_for_driver_and_camera(tmp_path):
    page = (ROOT / "docs/robots/interface.md").read_text()
    (yaml_text,) = re.findall(r"^    driver: external\n(?:    .*\n)+", page, re.M)
    (tmp_path / "robot.yaml").write_text(textwrap.dedent(yaml_text))
    (tmp_path / "limits.yaml").write_text(f"extends: {ROOT}/robots/ur5e/limits.yaml\n")
    shown = load_robot(str(tmp_path))
    assert shown == load_robot("ur5e").but(
        driver="external", options={}, cameras={}, limits=shown.limits
    )


def test_the_page_of_recipes_names_every_one_and_every_section():
    page, sections = (ROOT / "docs/howto/recipes.md").read_text().split("## Sections")
    assert {path.stem for path in ROOT.glob("configs/*.yaml")} <= set(re.findall(r"`(\w+)`", page))
    assert Recipe.model_fields.keys() == set(
        re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|$)", sections, re.M)
    )


def demo_commands():
    """Page and recipe of each `rlinf demo RECIPE`, in pages and recipes."""
    pages = [*PAGES, *sorted(ROOT.glob("configs/*.yaml"))]
    return sorted(
        {
            (page.name, name)
            for page in pages
            for name in re.findall(r"rlinf demo (\w+)\b(?!/)", page.read_text())
        }
    )


@pytest.mark.parametrize("page, name", demo_commands())
def test_a_recipe_that_is_said_to_run_a_station_does(page, name):
    recipe = load_recipe(name)
    assert recipe.simulation.environments == 0, f"{page}: `rlinf demo {name}` refuses it"
    assert source_of(recipe) == STATIONS, f"{page}: `rlinf demo {name}` refuses it"


def test_commands_of_recipes_are_looked_for_where_they_stand():
    assert {("recipes.md", "demo_tiny"), ("demo_hil.yaml", "demo_hil")} <= set(demo_commands())
    assert len(demo_commands()) > 15


TWO_PLACES = {  # messages that two functions make, and the string of each
    "unknown key '<...>' (did you mean '<...>'?)": ("unknown key '{", " (did you mean '{"),
    "limits <...>: box is inverted in <...>": ("limits {", "box is inverted in {"),
    "simulator: expected one of <...>, or package.module:name": (
        '"simulator"',
        "{where}: expected one of {', '.join(known)}, or package.module:name",
    ),
    "simulation.initial_policy: <...>: expected a policy-*.safetensors": (
        "simulation.initial_policy: {error",
        "{path}: expected a policy-*.safetensors",
    ),
    "policy server <...>: expected it to accept an observation within <...> s": (
        "policy server {",
        "expected it to accept an observation within {",
    ),
}


@pytest.fixture(scope="module")
def raised():
    """All sources, with strings in one piece that go on in the next line."""
    folders = ("rlinf_core", "ros_ws/src", "launch", "sim_bridges", "scripts")
    sources = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".sh") or path.name == "CMakeLists.txt"
    ]
    text = "\n".join(path.read_text() for path in sources)
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.mark.parametrize(
    "message",
    re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/howto/troubleshooting.md").read_text(), re.M),
)
def test_every_message_in_troubleshooting_is_one_we_raise(message, raised):
    """The fragments of a message are in one string of the code, in the same order."""
    if message in TWO_PLACES:
        assert all(part in raised for part in TWO_PLACES[message])
        return
    fragments = [part.strip(" '():?.") for part in message.split("<...>")]
    pattern = r"[^\n]{0,400}?".join(re.escape(part) for part in fragments if part)
    assert re.search(pattern, raised), f"no string of the code is {message!r}"


ROS2 = (
    r"\bros2 (action|bag|component|interface|lifecycle|node|param|pkg|run rlinf "
    r"\w|service|topic|wtf)"
)
ASKS = [
    (f"{page.name}:{number}", line)
    for page in PAGES
    for number, line in enumerate(page.read_text().splitlines(), 1)
    if re.search(ROS2, line) and not re.search("fault_injector|/inject ", line)
]


@pytest.mark.parametrize("line", [line for _, line in ASKS], ids=[place for place, _ in ASKS])
def test_where_a_page_asks_a_station_or_a_recording_with_ros2_it_names_the_rlinf_command_too(line):
    """With ROS from wheels there is no ros2.

    Lines about launch files, keys and remapping (an injector) are left out.
    """
    assert re.search(r"(?<!ros2 run )(?<!ros2 launch )\brlinf [a-z]", line)


def test_code_names_pages_that_exist():
    """Messages, comments and --help send a reader to `docs/...`."""
    kinds = ["*.py", "*.sh", "*.yaml", "*.proto", "*.toml", "*.html", "*.js", "Makefile"]
    listed = subprocess.run(
        ["git", "ls-files", *kinds], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    for name in listed:
        for page in re.findall(r"\bdocs/[\w/]+\.(?:md|schema\.json)", (ROOT / name).read_text()):
            assert (ROOT / page).is_file(), f"{name}: {page}"


def test_the_navigation_of_the_site_has_each_page_once():
    """`make docs` needs packages of its own; what breaks a link or leaves a page out is
    seen here.
    """
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"([\w/]+\.md)$", nav, re.M)
    assert sorted(listed) == sorted(
        str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")
    )


def test_both_ci_files_build_the_site_and_the_packages_besides_lint_and_tests():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = [
        step["run"].removeprefix("make ")
        for step in workflow["jobs"]["ci"]["steps"]
        if "run" in step
    ]
    targets = re.search(r"make ([a-z ]+?)\s*(?:#|$)", (ROOT / ".ci/run").read_text(), re.M)[
        1
    ].split()
    assert steps == targets == ["lint", "docs", "dist", "test"]
    rules = dict(
        re.findall(r"^(docs|dist):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    )
    assert "mkdocs build --strict" in rules["docs"] and "check --strict" in rules["dist"]


def test_pages_of_the_design_name_modules_that_exist():
    for page in PAGES:
        for path in re.findall(
            r"`((?:rlinf|rlinf_core|sim_bridges|benchmarks|configs|robots|scripts|tests)/[\w/.]+)`",
            page.read_text(),
        ):
            is_copy = path.startswith("robots/mine/")  # the reader's copy of a robot's folder
            assert is_copy or (ROOT / path).exists(), f"{page.name}: {path}"


WHERE = re.findall(
    r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", (ROOT / "docs/contribute/where.md").read_text(), re.M
)


@pytest.mark.parametrize("question, file, name", WHERE)
def test_where_is_what_names_a_file_and_a_definition_in_it(question, file, name):
    tree = ast.parse((ROOT / file).read_text())
    defined = {getattr(node, "name", "") for node in tree.body}
    defined |= {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    assert name in defined


def test_where_is_what_answers_every_question_once():
    assert len(WHERE) == len({question for question, _, _ in WHERE}) > 35


def test_the_safety_page_has_every_requirement_and_trap_and_names_tests_that_exist():
    table = (ROOT / "docs/reference/safety_evidence.md").read_text()
    rows = re.findall(r"^\| ((?:S|trap )\d+) \|", table, re.M)
    assert rows == [f"S{n}" for n in range(1, 28)] + [f"trap {n}" for n in range(1, 20)]
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", table))
    assert len(named) >= 25 and all(f"def {name}(" in written for name in named)
    scenarios = (ROOT / "configs/drill.yaml").read_text()
    assert all(
        f"name: {name}," in scenarios
        for name in ("commands stop", "actions are NaN", "the interlock is killed")
    )


def test_the_diagram_of_the_interlock_has_its_states_and_every_way_into_motion():
    from rlinf_core.interlock.types import Mode

    (diagram,) = re.findall(
        r"stateDiagram-v2\n(.*?)```", (ROOT / "docs/safety.md").read_text(), re.S
    )
    edges = set(re.findall(r"(\w+) --> (\w+):", diagram))
    assert {state for edge in edges for state in edge} == {mode.name for mode in Mode}
    assert {start for start, end in edges if end == "ARMED"} == {"DISARMED", "ACTIVE", "HOLD"}, (
        "a person arms"
    )
    assert {start for start, end in edges if end == "ACTIVE"} == {"ARMED", "HOLD"}
    assert {end for start, end in edges if start == "FAULT"} == {"DISARMED"}


def test_the_python_of_the_algorithms_page_runs():
    names: dict = {}
    loss_example, code = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/explain/algorithms.md").read_text(), re.S
    )
    exec(loss_example, {"__name__": "my_loss"})  # noqa: S102
    exec(code, names)  # noqa: S102
    assert names["chunk"].actions.shape == (11, 1, 2) and names["metrics"]["critic_loss"] > 0


def test_the_python_of_the_page_for_users_of_stable_baselines_runs():
    (code,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/coming_from/sb3.md").read_text(), re.S
    )
    names: dict = {}
    exec(code, names)  # noqa: S102
    assert names["env"].observation_space.contains(names["observation"]) and isinstance(
        names["reward"], float
    )


def test_the_algorithms_page_names_every_algorithm():
    from rlinf_core.algorithms import algorithms

    page, recipes = (ROOT / "docs/explain/algorithms.md").read_text().split("## A recipe for each")
    assert sorted(set(re.findall(r"^\| `(\w+)` \|", page, re.M))) == algorithms()
    named = set(re.findall(r"`(\w+)`", recipes))
    assert {path.stem for path in (ROOT / "configs").glob("sim_*.yaml")} <= named
    assert {f"sim_{name}" for name in algorithms()} <= named, "each has a recipe"


def test_each_workaround_is_where_the_page_says():
    table = (
        (ROOT / "docs/contribute/workarounds.md")
        .read_text()
        .split("|---|---|---|---|\n")[1]
        .split("\n\n")[0]
    )
    file = ""
    for row in table.splitlines():
        where = row.split(" | ")[1]
        for name, other_file in re.findall(r"`([^`]+)`(?: in `([^`]+)`)?", where):
            if "/" in name:
                assert (ROOT / name).is_file(), name
            else:
                file = other_file or file
                assert name in (ROOT / file).read_text() or f"/{name}/" in file, (
                    f"{name} is not in {file}"
                )
    workarounds = (ROOT / "ros_ws/src/rlinf_ros/rlinf_ros/workarounds.py").read_text()
    ours = re.findall(r"^(?:class|def) ([A-Za-z]\w*)", workarounds, re.M)
    assert set(ours) - {"single_threaded"} <= set(re.findall(r"`(\w+)`", table)), (
        "each stands on the page"
    )
