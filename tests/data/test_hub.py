"""Push and pull by the real ``huggingface_hub`` against a local server with the endpoints that it
uses.
"""

import base64
import hashlib
import http.server
import json
import subprocess
import sys
import threading
import urllib.parse

import pytest

pytest.importorskip("huggingface_hub")

from rlinf_core.core.errors import EpisodeError, PolicyFileError, RlinfError
from rlinf_core.data import hub
from rlinf_core.episodes.spool import Spool
from tests.messages import record

TOKEN = "hf_abcdefghijklmnop0123456789"
BIG = 4096  # bytes from which the server wants a file by LFS


class Hub(http.server.ThreadingHTTPServer):
    """Repositories with one commit after the other; large files go by LFS, as at the real one."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.repos, self.objects, self.tags, self.fails, self.evil = {}, {}, {}, 0, ""
        self.messages, self.revisions = [], []  # of commits, and of what was tagged or read
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Quiet."""

    def reply(self, status, body=b"", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_one(self):
        server, body = self.server, self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if (self.headers.get("Transfer-Encoding") or "") == "chunked":
            body = b"".join(iter(self.chunk, b""))
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path.startswith("/objects/"):
            if self.command == "PUT":
                server.objects[path.rpartition("/")[2]] = body
            return self.reply(200)
        if server.fails:
            return self.reply(server.fails, {"error": f"no. {self.headers.get('Authorization')}"})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.reply(401, {"error": "Invalid username or password."})
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            document = json.loads(body)
            kind = f"{document.get('type') or 'model'}s"
            name = f"{document['organization']}/{document['name']}"
            server.repos.setdefault(
                (kind, name), {"files": {}, "visibility": document.get("visibility")}
            )
            prefix = "" if kind == "models" else f"{kind}/"
            return self.reply(200, {"url": f"{server.url}/{prefix}{name}"})
        if path == "/api/validate-yaml":
            return self.reply(200, {"errors": [], "warnings": []})
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {
                    "oid": item["oid"],
                    "size": item["size"],
                    "actions": {"upload": {"href": f"{server.url}/objects/{item['oid']}"}},
                }
                for item in json.loads(body)["objects"]
            ]
            return self.reply(
                200,
                {"transfer": "basic", "objects": objects},
                **{"Content-Type": "application/vnd.git-lfs+json"},
            )
        if parts[0] == "api":
            return self.api(parts[1], "/".join(parts[2:4]), parts[4:], body)
        kind = "datasets" if parts[0] == "datasets" else "models"
        name, rest = "/".join(parts[kind == "datasets" :][:2]), parts[kind == "datasets" :][2:]
        content = server.repos[kind, name]["files"].get("/".join(rest[2:]))
        if content is None:
            return self.reply(
                404, {"error": "Entry not found"}, **{"X-Error-Code": "EntryNotFound"}
            )
        return self.reply(
            200,
            content,
            **{"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": "0" * 40},
        )

    def chunk(self):
        size = int(self.rfile.readline(), 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def api(self, kind, name, rest, body):
        server = self.server
        if (repo := server.repos.get((kind, name))) is None:
            return self.reply(
                404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"}
            )
        files = repo["files"]
        if rest[:1] == ["preupload"]:
            return self.reply(
                200,
                {
                    "files": [
                        {
                            "path": file["path"],
                            "uploadMode": "lfs" if file["size"] > BIG else "regular",
                            "shouldIgnore": False,
                        }
                        for file in json.loads(body)["files"]
                    ]
                },
            )
        if rest[:1] == ["commit"]:
            rows = [json.loads(line) for line in body.splitlines()]
            server.messages.append(rows[0]["value"]["summary"])
            for row in rows[1:]:
                value = row["value"]
                files[value["path"]] = (
                    base64.b64decode(value["content"])
                    if row["key"] == "file"
                    else server.objects[value["oid"]]
                )
            return self.reply(
                200, {"commitUrl": f"{server.url}/{name}/commit/{'0' * 40}", "commitOid": "0" * 40}
            )
        if rest[:1] == ["tag"]:
            tags = server.tags.setdefault(name, set())
            if self.command == "DELETE":
                if rest[1] not in tags:
                    return self.reply(
                        404, {"error": "no tag"}, **{"X-Error-Code": "RevisionNotFound"}
                    )
                tags.remove(rest[1])
            else:
                tags.add(json.loads(body)["tag"])
                server.revisions.append(rest[1])
            return self.reply(200, {})
        if rest[:1] == ["revision"]:
            server.revisions.append(rest[1])
        if rest[:1] == ["tree"]:
            named = {server.evil: b"x"} if server.evil else files
            return self.reply(
                200,
                [
                    {"type": "file", "path": path, "size": len(content), "oid": "1" * 40}
                    for path, content in named.items()
                ],
            )
        return self.reply(
            200, {"id": name, "sha": "0" * 40, "siblings": [{"rfilename": path} for path in files]}
        )

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815


@pytest.fixture
def server(monkeypatch, tmp_path):
    server = Hub()
    for name, value in (
        ("HF_ENDPOINT", server.url),
        ("HF_TOKEN", TOKEN),
        ("HF_HUB_DISABLE_XET", "1"),
        ("HF_HOME", str(tmp_path / "home")),
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield server
    server.shutdown()
    server.server_close()


def rlinf(*argv):
    """A process of its own, because huggingface_hub reads its environment at import."""
    done = subprocess.run(
        [sys.executable, "-m", "rlinf_core.cli.main", *map(str, argv)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert TOKEN not in done.stdout + done.stderr, "a token is never printed"
    return done


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_recordings_come_back_with_their_seals(server, tmp_path, task):
    spool = Spool(tmp_path / "run/spool", min_free_mb=0)
    record(spool, task.spec, "a-1", steps=5).close()
    record(spool, task.spec, "a-2", steps=40, success=False).close()
    record(spool, task.spec, "a-3", steps=4)  # never closed
    done = rlinf("data", "push", tmp_path / "run", "--to", "me/takes")
    assert done.returncode == 0, done.stderr
    assert (
        "2 episodes, 1 succeeded" in done.stdout
        and f"pushed to {server.url}/datasets/me/takes" in done.stdout
    )
    repo = server.repos["datasets", "me/takes"]
    assert repo["visibility"] == "private" and not any("a-3" in name for name in repo["files"])
    assert any(len(content) > BIG for content in repo["files"].values()), "and some by LFS"
    done = rlinf("data", "pull", "me/takes", "--out", tmp_path / "back")
    assert done.returncode == 0, done.stderr
    back = contents(tmp_path / "back")
    assert back.pop("README.md").startswith(b"---\ntags: [robotics, rlinf]")
    assert back == contents(tmp_path / "run/spool/closed")
    server.repos["datasets", "me/takes"]["files"]["a-1/a-1.mcap"] += b"?"
    done = rlinf("data", "pull", "me/takes", "--out", tmp_path / "damaged")
    assert (
        done.returncode == 1 and "SHA256SUMS" in done.stderr and not (tmp_path / "damaged").exists()
    )


def test_a_lerobot_data_set_gets_its_layout_as_a_tag(server, tmp_path):
    (tmp_path / "set/meta").mkdir(parents=True)
    (tmp_path / "set/meta/info.json").write_text(
        json.dumps({"codebase_version": "v3.0", "total_episodes": 3})
    )
    for _ in range(2):  # the second push moves the tag
        done = rlinf("data", "push", tmp_path / "set", "--to", "me/set", "--public")
        assert done.returncode == 0 and "3 episodes (LeRobot v3.0)" in done.stdout, done.stderr
    assert (
        server.tags["me/set"] == {"v3.0"}
        and server.repos["datasets", "me/set"]["visibility"] == "public"
    )
    assert b"LeRobot" in server.repos["datasets", "me/set"]["files"]["README.md"]


def test_a_policy_goes_with_its_recipe_and_report(server, tmp_path):
    run = tmp_path / "run"
    (run / "policies").mkdir(parents=True)
    (run / "policies/policy-000001.safetensors").write_bytes(b"1" * 9)
    (run / "policies/policy-000002.safetensors").write_bytes(b"2" * 9000)
    (run / "recipe.yaml").write_text("name: mine\n")
    (run / "report.json").write_text("{}")
    (run / "secret.txt").write_text("no")
    assert rlinf("policy", "push", run, "--to", "me/policy").returncode == 0
    assert rlinf("policy", "pull", "me/policy", "--out", tmp_path / "back").returncode == 0
    back = contents(tmp_path / "back")
    assert back.keys() == {"policy-000002.safetensors", "recipe.yaml", "report.json", "README.md"}
    assert back["policy-000002.safetensors"] == b"2" * 9000


def test_what_is_refused_is_said_with_its_remedy(server, tmp_path, monkeypatch):
    out = tmp_path / "out"
    done = rlinf("data", "pull", "me/nothing", "--out", out)
    assert (
        done.returncode == 1
        and "got none of that name (404)" in done.stderr
        and "RL-E519" in done.stderr
    )
    server.repos["datasets", "me/evil"] = {"files": {}}
    server.evil = "../../evil.txt"
    done = rlinf("data", "pull", "me/evil", "--out", out)
    assert done.returncode and not out.exists() and not list(tmp_path.rglob("evil.txt"))
    server.fails = 500
    assert "got 500" in rlinf("data", "pull", "me/nothing", "--out", out).stderr
    server.fails = 0
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrong")
    (tmp_path / "policy-1.safetensors").write_bytes(b"1")
    done = rlinf("policy", "push", tmp_path / "policy-1.safetensors", "--to", "me/policy")
    assert (
        done.returncode == 1
        and "hf auth login" in done.stderr
        and "wrongwrong" not in done.stdout + done.stderr
    )
    done = rlinf("policy", "push", tmp_path / "policy-1.safetensors", "--to", "policy")
    assert done.returncode == 2 and "expected OWNER/NAME" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HF_ENDPOINT", "http://127.0.0.1:9", "cannot reach http://127.0.0.1:9"),
        ("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE is set"),
    ],
)
def test_without_a_network_it_says_what_to_do(server, tmp_path, monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    (tmp_path / "policy-1.safetensors").write_bytes(b"1")
    for argv in (
        ("policy", "push", tmp_path / "policy-1.safetensors", "--to", "me/policy"),
        ("data", "pull", "me/takes", "--out", tmp_path / "out"),
    ):
        done = rlinf(*argv)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, (
            done.stderr
        )


def test_no_token_stays_in_a_text():
    assert (
        hub.without_token(f"{TOKEN} Bearer abc.def Authorization")
        == "<token> <token> Authorization"
    )


@pytest.fixture
def here(server, monkeypatch):
    """The library in this process, which has read most of its environment already."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return server


def test_an_upload_of_recordings_has_those_that_were_closed(tmp_path, task, capsys):
    spool = Spool(tmp_path / "run/spool", min_free_mb=0)
    record(spool, task.spec, "a-1", steps=5).close()
    record(spool, task.spec, "a-2", steps=4, success=False).close()
    record(spool, task.spec, "a-3", steps=4).abort()
    closed = spool.root / "closed"
    for paths in ([tmp_path / "run"], [closed / "a-1", closed / "a-2"]):
        upload = hub.dataset_upload(paths)
        names = ("{0}.mcap", "SHA256SUMS", "metadata.yaml")
        expected = {f"{a}/{name.format(a)}" for a in ("a-1", "a-2") for name in names}
        assert set(upload.files) == expected
        assert all(path == closed / name for name, path in upload.files.items())
        assert (upload.kind, upload.tag) == ("dataset", "")
        assert upload.summary == "2 episodes, 1 succeeded"
        assert upload.card == (
            "---\ntags: [robotics, rlinf]\n---\n\n2 episodes, 1 succeeded. Layout: rosbag2. "
            "Use: `rlinf data list`\n"
        )
    assert "a-3" in capsys.readouterr().out
    with pytest.raises(EpisodeError):
        hub.dataset_upload([tmp_path / "none"])


def lerobot_set(root, **document):
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(document))
    (root / "data").mkdir()
    (root / "data/a.parquet").write_bytes(b"1")
    return root


def test_an_upload_of_a_lerobot_set_has_all_its_files_and_its_layout_as_the_tag(tmp_path):
    root = lerobot_set(tmp_path / "set", codebase_version="v3.0", total_episodes=7)
    upload = hub.dataset_upload([root])
    assert upload.files == {name: root / name for name in ("data/a.parquet", "meta/info.json")}
    assert (upload.kind, upload.tag) == ("dataset", "v3.0")
    assert upload.summary == "7 episodes (LeRobot v3.0)"
    assert upload.card == (
        "---\ntags: [robotics, rlinf, LeRobot]\n---\n\n7 episodes (LeRobot v3.0). Layout: "
        "LeRobot. Use: `rlinf data import lerobot`\n"
    )
    upload = hub.dataset_upload([lerobot_set(tmp_path / "other")])
    assert (upload.tag, upload.summary) == ("", "? episodes (LeRobot )")
    with pytest.raises(EpisodeError):  # two sets are no upload
        hub.dataset_upload([root, tmp_path / "other"])


def test_an_upload_of_a_policy_has_what_belongs_to_its_run(tmp_path):
    run = tmp_path / "run"
    (run / "policies").mkdir(parents=True)
    names = ("recipe.yaml", "report.json", "report.md", "learning_curve.png", "secret.txt")
    for name in names:
        (run / name).write_text("a")
    for number in (1, 2):
        (run / f"policies/policy-00000{number}.safetensors").write_bytes(b"1")
    newest = run / "policies/policy-000002.safetensors"
    for path in (run / "policies", newest):
        upload = hub.policy_upload(path)
        assert upload.files == {newest.name: newest} | {name: run / name for name in names[:4]}
        assert (upload.kind, upload.tag) == ("model", "")
        assert upload.summary == "policy-000002.safetensors"
        assert upload.card == (
            "---\ntags: [robotics, rlinf]\n---\n\npolicy-000002.safetensors. Layout: safetensors. "
            "Use: `rlinf eval`\n"
        )
    alone = tmp_path / "policy-000007.safetensors"
    alone.write_bytes(b"1")
    assert hub.policy_upload(alone).files == {alone.name: alone}
    with pytest.raises(PolicyFileError):
        hub.policy_upload(tmp_path / "none")


def test_an_upload_of_a_lerobot_policy_is_its_folder(tmp_path):
    folder = tmp_path / "pi05"
    (folder / "more").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "stats.json"):
        (folder / name).write_text("{}")
    upload = hub.policy_upload(folder)
    assert upload.files == {
        name: folder / name for name in ("config.json", "model.safetensors", "stats.json")
    }
    assert (upload.kind, upload.tag) == ("model", "")
    assert upload.summary == f"the 3 files of {folder}"
    assert upload.card == (
        "---\ntags: [robotics, rlinf, LeRobot]\n---\n\npi05. Layout: LeRobot. Use: `LeRobot`\n"
    )
    (folder / "config.json").unlink()
    with pytest.raises(PolicyFileError):
        hub.policy_upload(folder)


def test_a_push_is_one_commit_with_its_message_card_and_tag(here, tmp_path):
    root = lerobot_set(tmp_path / "set", codebase_version="v3.0", total_episodes=7)
    (root / "data/b.parquet").write_bytes(b"2" * 5000)
    upload = hub.dataset_upload([root])
    assert hub.push(upload, "me/set") == f"{here.url}/datasets/me/set"
    repo = here.repos["datasets", "me/set"]
    assert repo["visibility"] == "private" and here.messages == ["rlinf: 7 episodes (LeRobot v3.0)"]
    assert repo["files"] == {
        "data/a.parquet": b"1",
        "data/b.parquet": b"2" * 5000,
        "meta/info.json": (root / "meta/info.json").read_bytes(),
        "README.md": upload.card.encode(),
    }
    assert here.tags == {"me/set": {"v3.0"}} and here.revisions == ["0" * 40]
    (root / "README.md").write_text("mine")
    assert hub.push(hub.dataset_upload([root]), "me/open", public=True, message="more") == (
        f"{here.url}/datasets/me/open"
    )
    repo = here.repos["datasets", "me/open"]
    assert repo["visibility"] == "public" and repo["files"]["README.md"] == b"mine"
    assert here.messages[1:] == ["more"]
    policy = tmp_path / "policy-000001.safetensors"
    policy.write_bytes(b"1")
    assert hub.push(hub.policy_upload(policy), "me/policy") == f"{here.url}/me/policy"
    assert here.repos["models", "me/policy"]["files"][policy.name] == b"1"
    assert "me/policy" not in here.tags


def test_a_pull_is_the_revision_that_was_asked_for_without_the_librarys_record(here, tmp_path):
    here.repos["datasets", "me/set"] = {"files": {"a/x.txt": b"1", "README.md": b"2"}}
    here.repos["models", "me/set"] = {"files": {"policy-1.safetensors": b"3"}}
    out = tmp_path / "out"
    assert hub.pull("dataset", "me/set", out) == out
    assert contents(out) == {"a/x.txt": b"1", "README.md": b"2"}
    assert not (out / ".cache").exists()
    hub.pull("model", "me/set", tmp_path / "policy", "v2")
    assert contents(tmp_path / "policy") == {"policy-1.safetensors": b"3"}
    assert here.revisions == ["main", "v2"]
    with pytest.raises(RlinfError, match="expected an unused path"):
        hub.pull("dataset", "me/set", out)


@pytest.mark.parametrize(
    "status, message",
    [
        (401, "expected a token that {url} accepts for this repository, got none or one without this permission. Create one with write access at <endpoint>/settings/tokens, then run `hf auth login`, or set HF_TOKEN"),
        (403, "expected a token that {url} accepts for this repository, got none or one without this permission. Create one with write access at <endpoint>/settings/tokens, then run `hf auth login`, or set HF_TOKEN"),
        (404, "expected a repository or revision that you can see at {url}, got none of that name (404). Check the name. A private one also needs a token: run `hf auth login`, or set HF_TOKEN"),
        (418, "expected an answer of {url}, got 418: Client error '418 I'm a teapot' for url '{url}/api/repos/create'. Try again later"),
    ],
)  # fmt: skip
def test_a_refusal_is_said_with_its_remedy_and_without_the_token(here, tmp_path, status, message):
    policy = tmp_path / "policy-000001.safetensors"
    policy.write_bytes(b"1")
    here.fails = status
    with pytest.raises(RlinfError) as refused:
        hub.push(hub.policy_upload(policy), "me/policy")
    if status == 418:
        begin, end = message.format(url=here.url).split(": Client")[0], ". Try again later"
        assert str(refused.value).startswith(f"{begin}: ") and str(refused.value).endswith(end)
        assert "\n" not in str(refused.value)
    else:
        assert str(refused.value) == message.format(url=here.url)
    assert TOKEN not in str(refused.value) and refused.value.__cause__ is None


def test_without_a_token_one_is_asked_for(here, tmp_path, monkeypatch):
    import huggingface_hub

    def lacks(*_, **__):
        raise huggingface_hub.errors.LocalTokenNotFoundError("Token is required")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lacks)
    policy = tmp_path / "policy-000001.safetensors"
    policy.write_bytes(b"1")
    with pytest.raises(RlinfError, match=f"expected a token that {here.url} accepts"):
        hub.push(hub.policy_upload(policy), "me/policy")


OFFLINE = "HF_HUB_OFFLINE is set, so nothing was sent or read. Unset it, and run the command again"
UNREACHABLE = (
    "cannot reach http://127.0.0.1:9: {}. Nothing was changed here. Connect this machine, or name "
    "a mirror or your own server in HF_ENDPOINT, and run the command again. Without a network, "
    "copy the folder by hand: its recordings keep their seals"
)


@pytest.mark.parametrize(
    "offline, message", [("", None), ("0", None), ("1", OFFLINE), ("on", OFFLINE)]
)
def test_a_server_that_is_not_there_is_said_with_what_to_do(
    here, tmp_path, monkeypatch, offline, message
):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/")
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    policy = tmp_path / "policy-000001.safetensors"
    policy.write_bytes(b"1")
    with pytest.raises(RlinfError) as refused:
        hub.push(hub.policy_upload(policy), "me/policy")
    assert str(refused.value) == message or str(refused.value) == UNREACHABLE.format("ConnectError")
    assert (str(refused.value) == OFFLINE) is (message == OFFLINE)
    monkeypatch.setattr("huggingface_hub.HfApi.snapshot_download", _times_out)
    with pytest.raises(RlinfError) as refused:
        hub.pull("dataset", "me/set", tmp_path / "out")
    assert str(refused.value) == (message or UNREACHABLE.format("TimeoutError"))
    assert not list(tmp_path.glob("out*"))


def _times_out(*_, **__):
    raise TimeoutError


def test_a_fault_of_the_program_is_none_of_the_server(here, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi.snapshot_download", lambda *_, **__: {}["a"])
    with pytest.raises(KeyError):
        hub.pull("dataset", "me/set", tmp_path / "out")


@pytest.mark.parametrize("name", ["me", "me/", "/a", "me/a/b", "../a", ".me/a", "me/a b", "m\n/a", "a" * 97 + "/b", "me/" + "a" * 97])  # fmt: skip
def test_a_repository_has_an_owner_and_a_name(tmp_path, name):
    for call in (
        lambda: hub.push(hub.Upload("model", {}, "", "", ""), name),
        lambda: hub.pull("model", name, tmp_path / "out"),
    ):
        with pytest.raises(RlinfError) as refused:
            call()
        assert str(refused.value) == (
            f"repository: expected OWNER/NAME of letters, digits, '.', '_' and '-', got '{name}'"
        )
        assert refused.value.code == "RL-E110"


def test_a_name_may_be_as_long_as_the_hub_has_them_and_may_not_end_with_a_dash(here, tmp_path):
    name = "a" * 96 + "/" + "b._-" * 23 + "_0A9"
    here.repos["models", name] = {"files": {"a": b"1"}}
    assert contents(hub.pull("model", name, tmp_path / "out")) == {"a": b"1"}
    for wrong in ("me/a--b", "me/a-"):
        with pytest.raises(RlinfError, match="^repository: .*me/a-") as refused:
            hub.pull("model", wrong, tmp_path / "new")
        assert refused.value.code == "RL-E110" and not list(tmp_path.glob("new*"))
