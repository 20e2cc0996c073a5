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
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


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
            kind, name = (
                f"{document.get('type') or 'model'}s",
                f"{document['organization']}/{document['name']}",
            )
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
            return self.reply(200, {})
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
