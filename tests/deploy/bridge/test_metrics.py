"""The trainer's metrics of its fleet for Prometheus, and the dashboard, which shows all of them."""

import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rlinf_core.core import metrics
from rlinf_core.core.errors import BridgeError, RefusedError, RlinfError
from rlinf_core.deploy.bridge.client import BridgeClient
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.deploy.bridge.server import BridgeServer, families
from rlinf_core.deploy.releases import Release
from rlinf_core.deploy.releases.overview import families as release_families
from rlinf_core.deploy.releases.record import Evidence, Outcome, Record, ReleaseComparison, Trial
from rlinf_core.deploy.releases.releases import ReleaseController
from rlinf_core.episodes.spool import Spool
from tests.messages import record

DASHBOARD = Path(__file__).parents[3] / "configs/grafana/fleet.json"
REPORT = {
    "phase": "online",
    "policy_version": 7,
    "updates": 70,
    "episodes": 2,
    "transitions": 10,
    "update_ratio": 7.0,
    "accepting": True,
}


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def fleet(tmp_path, port):
    """A trainer with stations a and b, of which a calls; and its page."""
    enrolled = Fleet(tmp_path / "fleet")
    enrolled.enroll("a", tmp_path / "a", days=20)
    enrolled.enroll("b", tmp_path / "b")
    server = BridgeServer(
        "127.0.0.1:0",
        tmp_path / "run/inbox",
        tmp_path / "run/policies",
        print,
        lambda: REPORT,
        fleet=tmp_path / "fleet",
    )
    client = BridgeClient(f"127.0.0.1:{server.port}", "a", tmp_path / "a")
    releases = ReleaseController(Release(staged=True, episodes=2, watch=2), tmp_path / "run")
    releases.record = Record(
        current=4,
        trial=Trial(version=5, station="a", old=[]),
        watched=ReleaseComparison(
            before=3,
            old={"a": []},
            pairs=[(outcome("new"), outcome("old"))],
            evidence={"success": Evidence(largest=2.0)},
        ),
    )
    end = metrics.serve(lambda: [*families(server), *release_families(releases)], port)
    yield client, server
    end()
    client.close()
    server.stop()


def outcome(name):
    return Outcome(id=name, version=4, success=True, interlock=0.0)


def scrape(port):
    """{(name, labels as text): value}."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
        }


def test_what_stations_send_and_tell_is_counted(fleet, port, spool, task, tmp_path):
    client, server = fleet
    first = record(spool, task.spec, "one").close()
    assert client.upload(first) is False and client.upload(first) is True
    assert client.upload(record(spool, task.spec, "two").close()) is False
    with pytest.raises(RefusedError):
        client.upload(record(Spool(tmp_path / "other"), task.spec, "one", start=9.0).close())
    server.inbox.min_free_mb = 1e12
    with pytest.raises(BridgeError, match="MB free"):
        client.upload(record(spool, task.spec, "four").close())
    client.report(3, 6, timeout_s=10.0, set_aside=2, spool_full=0.25)
    metrics = scrape(port)
    outcomes = {
        labels[0]: value
        for (name, *labels), value in metrics.items()
        if name == "rlinf_fleet_uploads_total"
    }
    assert outcomes == {"stored": 2, "duplicate": 1, "refused": 1, "later": 1}
    assert (
        metrics["rlinf_fleet_upload_seconds_count",] == 2
        and metrics["rlinf_fleet_uploads_under_way",] == 0
    )
    assert (
        0
        < metrics["rlinf_fleet_upload_seconds", "0.5"]
        <= metrics["rlinf_fleet_upload_seconds", "0.99"]
    )
    assert (
        metrics["rlinf_fleet_upload_seconds_sum",] >= metrics["rlinf_fleet_upload_seconds", "0.99"]
    )
    station = {
        name: metrics[f"rlinf_station_{name}", "a"]
        for name in ("up", "backlog", "policy_version", "set_aside", "spool_full")
    }
    assert station == {
        "up": 1,
        "backlog": 3,
        "policy_version": 6,
        "set_aside": 2,
        "spool_full": 0.25,
    }
    assert (
        19
        < metrics["rlinf_station_certificate_days", "a"]
        < 20
        < 364
        < metrics["rlinf_station_certificate_days", "b"]
    )
    assert (metrics["rlinf_trainer_policy_version",], metrics["rlinf_trainer_update_ratio",]) == (
        7,
        7.0,
    )
    assert (metrics["rlinf_release_version", "all"], metrics["rlinf_release_version", "trial"]) == (
        4,
        5,
    )
    assert (
        metrics["rlinf_release_compared_episodes",] == 1
        and metrics["rlinf_release_p_value", "success"] == 0.5
    )
    assert metrics["rlinf_release_rolled_back_at",] == 0.025, "of two measures"
    assert (
        metrics["rlinf_trainer_accepting",] == 1 and metrics["process_resident_memory_bytes",] > 1e6
    )
    server.stations["a"] = (server.stations["a"][0] - 11.0, server.stations["a"][1])
    assert scrape(port)["rlinf_station_up", "a"] == 0, "it was not heard for 11 s"


def test_the_dashboard_shows_every_metric_that_there_is_and_no_other(fleet, port, spool, task):
    client, _ = fleet
    client.upload(record(spool, task.spec, "one").close())
    client.report(0, 0, timeout_s=10.0)
    exported = {name for name, *_ in scrape(port)}
    dashboard = json.loads(DASHBOARD.read_text())
    plotted = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:rlinf|process)_\w+", target["expr"])
    }
    assert plotted <= exported, f"nothing has {plotted - exported}"
    assert {name for name in exported if name.startswith("rlinf_")} <= plotted, (
        "the dashboard leaves some out"
    )
    labels = {
        label
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"])
    }
    assert labels == {"station", "outcome", "quantile", "which", "measure"}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert sorted(set(ids)) == ids


def test_a_port_that_is_taken_is_said_and_one_that_was_given_back_is_free(port):
    end = metrics.serve(lambda: [], port)
    with pytest.raises(
        RlinfError, match=f"metrics: cannot listen on 127.0.0.1:{port}: .*Choose another port"
    ):
        metrics.serve(lambda: [], port)
    end()
    with pytest.raises(urllib.error.URLError):
        scrape(port)
    metrics.serve(lambda: [], port)()
