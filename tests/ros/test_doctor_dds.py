"""`rlinf doctor` on the middleware: an image goes from one process to another, by the one that our
profile is for.
"""

from types import SimpleNamespace

import pytest

from rlinf_core.cli import doctor

pytestmark = [pytest.mark.ros, pytest.mark.patient, pytest.mark.timeout(180)]


def test_an_image_comes_from_another_process():
    finding = doctor._middleware()
    assert not finding.fix and "an image came through" in finding.result


@pytest.mark.parametrize(
    "reply, text",
    [
        ("ok rmw_cyclonedds_cpp", "rmw_cyclonedds_cpp, for which rlinf has no profile"),
        ("lost rmw_fastrtps_cpp", "an image was lost"),
    ],
)
def test_another_middleware_and_a_loss_are_no_ok(monkeypatch, reply, text):
    monkeypatch.setattr(
        doctor.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=f"{reply}\n", stderr="")
    )
    finding = doctor._middleware()
    assert finding.fix and text in finding.result
