"""The output of a run: ``progress.jsonl``, TensorBoard, Weights & Biases, and times by part."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.core import extras
from rlinf_core.core.atomic_io import append_line, write_atomically
from rlinf_core.core.errors import RlinfError, is_transient
from rlinf_core.reports.curves import read_events

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

MIN_WEIGHT = 0.02  # weight of the newest value in a metric's mean
EVALUATION_SCALARS = {
    "success",
    "failure",
    "return",
    "robot_minutes",
    "successes_per_hour",
    "time_to_success_s",
    "longest_run",
}
WRITE_S = 2.0  # interval of writing scalars
SPANS = 20_000  # maximum number of spans in memory
RETRY_S = 10.0  # delay after a failed write
STEP = "env_steps"  # x axis of all curves at Weights & Biases


class Clock:
    """Measures seconds by part of a run (simulate, infer, transfer, learn, ...).

    A part within another part counts as the outer one.

    Attributes:
        seconds: seconds by part.
        spans: newest spans for the trace: (part, process, begin [s since 1970], seconds).
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.spans: deque[tuple[str, str, float, float]] = deque(maxlen=SPANS)
        self.part = ""

    def span(self, part: str, process: str, started_at: float, seconds: float) -> None:
        """Add a span of a process to the trace."""
        self.spans.append((part, process, started_at, seconds))

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        if self.part:
            yield
            return
        self.part = part
        started = time.perf_counter()
        try:
            yield
        finally:
            self.part = ""
            seconds = time.perf_counter() - started
            self.seconds[part] += seconds
            self.span(part, "trainer", time.time() - seconds, seconds)


class DiskGuard:
    """Keeps a run alive when the disk refuses writes: it reports the failure and retries later.

    Args:
        run_dir: folder of the run.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.retry_at = dict[str, float]()

    def try_write(self, file_kind: str, write: Callable[[], None]) -> None:
        """Call ``write`` unless it failed within the last RETRY_S.

        Raises:
            OSError: the error does not come from a full or failing disk.
        """
        if time.monotonic() < self.retry_at.get(file_kind, -math.inf):
            return
        try:
            write()
        except OSError as error:
            # errors of safetensors have no errno
            if not (is_transient(error) or error.errno in (None, errno.EFBIG)):
                raise
            self.retry_at[file_kind] = time.monotonic() + RETRY_S
            print(
                f"{self.run_dir}: {file_kind} cannot be written: {error}. Training continues, and "
                f"the trainer retries every {RETRY_S:.0f} s. Free disk space",
                flush=True,
            )


def wandb_run(run_dir: Path, project: str, settings: dict[str, Any]) -> Any:
    """Open the run at Weights & Biases, or resume it.

    WANDB_MODE=offline keeps it in the run's folder.
    """
    extras.require("wandb", "recipe key wandb")
    import wandb

    name = f"{run_dir.name}-{hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:8]}"
    run = wandb.init(
        project=project,
        name=run_dir.name,
        id=name,
        resume="allow",
        dir=str(run_dir),
        config=settings,
    )
    run.define_metric("*", step_metric=STEP)
    return run


class Progress:
    """Averages the learner's metrics and writes the curves of a run.

    Tags in TensorBoard and Weights & Biases: ``train/`` for metrics of the learner, ``data/`` for
    counters of experience, ``eval/`` for evaluations.

    Args:
        run_dir: folder of the run.
        project: project at Weights & Biases; empty for none.
        settings: settings of the run, for Weights & Biases.
    """

    def __init__(
        self, run_dir: Path, project: str = "", settings: dict[str, Any] | None = None
    ) -> None:
        self.run_dir = run_dir
        self._wandb = wandb_run(run_dir, project, settings or {}) if project else None
        self._writer: SummaryWriter | None = None
        self._purge_step: int | None = None  # step from which a resumed run rewrites its curves
        self.file = run_dir / "progress.jsonl"
        self.metrics: dict[str, float] = {}
        self.counts: dict[str, int] = defaultdict(int)
        self.written_at = -math.inf
        self.last: dict[str, float] = {}  # evaluation; none yet

    @property
    def writer(self) -> SummaryWriter:
        """The TensorBoard writer.

        A failed write makes it unusable, so the next access creates a new one.
        """
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is None:
            self._writer = SummaryWriter(
                str(self.run_dir / "tensorboard"), purge_step=self._purge_step
            )
            self._purge_step = None
        return self._writer

    def note(self, metrics: dict[str, float], updates: int) -> None:
        """Add the metrics of an update to the running means.

        Raises:
            RlinfError: a metric is not finite.
        """
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise RlinfError(
                    f"training diverged: {name} is {value} after {updates} updates. The last good "
                    f"state is in {self.run_dir / 'checkpoints'}; lower the learning rate and "
                    "resume from it"
                )
            self.counts[name] += 1
            weight = max(MIN_WEIGHT, 1.0 / self.counts[name])
            self.metrics[name] = (1.0 - weight) * self.metrics.get(name, 0.0) + weight * value

    def write(self, step: int, counts: dict[str, float]) -> None:
        """Write the current scalars. Raises OSError if the disk refuses them."""
        self.written_at = time.monotonic()
        self._log(
            {f"train/{name}": value for name, value in self.metrics.items()}
            | {f"data/{name}": value for name, value in counts.items()},
            step,
        )
        try:
            for group, values in (("train", self.metrics), ("data", counts)):
                for name, value in values.items():
                    self.writer.add_scalar(f"{group}/{name}", value, step)
        except OSError:
            self.close()
            raise

    def write_evaluation(self, entry: dict[str, float]) -> None:
        """Write an evaluation: a line in progress.jsonl, and its scalars."""
        self.last = entry
        append_line(self.file, json.dumps({"event": "evaluation", "time": time.time()} | entry))
        self._log(
            {f"eval/{name}": entry[name] for name in EVALUATION_SCALARS & entry.keys()},
            int(entry["env_steps"]),
        )
        try:
            for name in EVALUATION_SCALARS & entry.keys():
                self.writer.add_scalar(f"eval/{name}", entry[name], entry["env_steps"])
        except OSError:  # the line in progress.jsonl is written
            self.close()

    def write_placement(self, entry: dict[str, Any]) -> None:
        """Write a decision on the layout: a line in progress.jsonl."""
        append_line(self.file, json.dumps({"event": "placement", "time": time.time()} | entry))

    def _log(self, values: dict[str, float], step: int) -> None:
        if self._wandb is not None:
            self._wandb.log(values | {STEP: step})

    def state_dict(self) -> dict[str, Any]:
        """Return the running means and their counts."""
        return {"metrics": [self.metrics], "counts": [self.counts]}

    def load_state_dict(self, state: dict[str, Any], before: int, step: int) -> None:
        """Restore a state and remove records of later steps.

        Args:
            state: state of ``state_dict``.
            before: evaluations from this step on are removed, because they are repeated.
            step: step of the checkpoint.
        """
        self._purge_step = step + 1
        self.metrics, self.counts = dict(state["metrics"][0]), defaultdict(int, state["counts"][0])
        previous_text = self.file.read_text(errors="replace") if self.file.is_file() else ""
        events = [
            event
            for event in read_events(self.run_dir)
            if event["event"] != "evaluation" or "name" in event or event["env_steps"] < before
        ]
        for event in events:
            if event["event"] == "evaluation" and "name" not in event:
                self.last = {
                    key: value for key, value in event.items() if key not in ("event", "time")
                }
        text = "".join(json.dumps(event) + "\n" for event in events)
        if text != previous_text:
            write_atomically(self.file, lambda temporary: temporary.write_text(text))

    def close(self) -> None:
        """Flush and close the TensorBoard writer."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
        self._writer = None
