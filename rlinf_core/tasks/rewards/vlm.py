"""Success by a vision-language model on a server with OpenAI's chat completions."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections import deque
from concurrent.futures import Future
from threading import Thread
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field

from rlinf_core.core.connections import is_loopback
from rlinf_core.core.errors import EngineError, RecipeError, escape_ascii

PROMPT = (
    "These pictures were taken one after the other, the last one now. {} Answer with one "
    "word: yes or no."
)
ANSWER_BYTES, MAX_ERROR_BYTES = 1 << 20, 200
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Count = Annotated[int, Field(ge=1, le=100)]


class VLM:
    """True after several yes in a row, from one question at a time about the newest frames."""

    def __init__(
        self,
        *,
        question: Annotated[str, Field(min_length=1)],
        name: Annotated[str, Field(min_length=1)],
        cameras: Annotated[tuple[str, ...], Field(min_length=1)] = ("front",),
        url: str = "http://127.0.0.1:8000/v1",
        frames: Annotated[int, Field(ge=1, le=16)] = 2,
        stride: Count = 5,
        in_a_row: Count = 2,
        waits: bool = False,
        timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0,
        key_variable: str = "",
    ) -> None:
        """Settings.

        Args:
            question: yes-or-no question about the last frames, e.g. "Is the peg in the socket?"
            name: name of the model at the server
            cameras: cameras with the frames
            url: address of the server, with /v1
            frames: frames of each camera
            stride: time steps between two frames
            in_a_row: consecutive answers "yes" that count as success, each of new frames
            waits: each time step waits for its answer, in simulation and lockstep. false lets the
                robot continue
            timeout_s: longest time for an answer [s]
            key_variable: environment variable with the server's key, if it needs one
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RecipeError(
                "reward.url: expected an address such as http://127.0.0.1:8000/v1, got "
                f"'{escape_ascii(url)}'"
            )
        self.is_local = is_loopback(parts.hostname)
        if key_variable and parts.scheme == "http" and not self.is_local:
            raise RecipeError(
                "reward.url: expected https://, since each request contains a key, got "
                f"'{escape_ascii(url)}'"
            )
        self.question = question
        self.name = name
        self.url = url.rstrip("/")
        self.cameras = tuple(cameras)
        self.stride = stride
        self.in_a_row = in_a_row
        self.waits = waits
        self.timeout_s = timeout_s
        self.key_variable = key_variable
        self.channels = tuple(f"camera/{camera}/image" for camera in cameras)
        self.history: deque[list[np.ndarray]] = deque(maxlen=(frames - 1) * stride + 1)
        self.answer: Future[bool] | None = None
        self.running: Future[bool] | None = None  # possibly one of an earlier episode
        self.yes = 0
        self.trouble = ""

    def begin(self) -> None:
        """Begin another episode; frames and questions of the last one do not count."""
        self.history.clear()
        self.answer = None
        self.yes = 0

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        self.history.append([channels[name] for name in self.channels])
        if self.waits:
            self.answer = self._request_verdict()
            self._take(self.answer)
        elif self.answer is None or self.answer.done():
            if self.answer is not None:
                self._take(self.answer)
            is_free = self.running is None or self.running.done()
            self.answer = self._request_verdict() if is_free else None
        return self.yes >= self.in_a_row

    def _take(self, answer: Future[bool]) -> None:
        """Count an answer; a missing one counts as no.

        Raises:
            EngineError: there is no answer, and a time step waits for it.
        """
        try:
            self.yes = self.yes + 1 if answer.result() else 0
            self.trouble = ""
        except EngineError as error:
            self.yes = 0
            self.trouble = str(error)
            if self.waits:
                raise

    def _request_verdict(self) -> Future[bool]:
        """Ask in a thread whether the task is done in the frames up to now."""
        newest_first = list(self.history)[::-1][:: self.stride]
        self.running = answer = Future[bool]()
        Thread(target=self._answer, args=(answer, newest_first[::-1]), daemon=True).start()
        return answer

    def _answer(self, answer: Future[bool], moments: list[list[np.ndarray]]) -> None:
        with contextlib.suppress(OSError):  # some kernels refuse; the thread works anyway
            # normal priority for this thread, because the calling thread controls an arm
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        try:
            answer.set_result(self._yes(self._post(self._message(moments))))
        except Exception as error:  # raised again at the reader of the answer
            answer.set_exception(
                error if isinstance(error, EngineError) else EngineError(f"{self.url}: {error}")
            )

    def _message(self, moments: list[list[np.ndarray]]) -> dict[str, Any]:
        pictures = [
            {"type": "image_url", "image_url": {"url": _jpeg(image)}}
            for moment in moments
            for image in moment
        ]
        words = [{"type": "text", "text": PROMPT.format(self.question)}]
        return {
            "model": self.name,
            "messages": [{"role": "user", "content": [*pictures, *words]}],
            "temperature": 0.0,
        }

    def _post(self, message: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.url}/chat/completions",
            json.dumps(message).encode(),
            {"Content-Type": "application/json"},
        )
        if self.key_variable:  # not forwarded to a server that this one redirects to
            request.add_unredirected_header("Authorization", f"Bearer {self._key()}")
        try:
            opener = _DIRECT.open if self.is_local else urllib.request.urlopen
            with opener(request, timeout=self.timeout_s) as answer:
                return json.loads(answer.read(ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            message_text = escape_ascii(error.read(MAX_ERROR_BYTES).decode(errors="replace"))
            raise EngineError(
                f"{self.url}: expected an answer, got status {error.code}: '{message_text}'"
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineError(
                f"{self.url}: expected a server that answers in JSON within {self.timeout_s:g} s, "
                f"got '{escape_ascii(error)}'. Is it running (docs/howto/rewards.md)?"
            ) from error

    def _key(self) -> str:
        key = os.environ.get(self.key_variable, "")
        if not key or not key.isascii() or not key.isprintable():
            raise EngineError(
                f"reward.key_variable: expected a key in ${self.key_variable}, got none. Set it in "
                "the shell that starts the station"
            )
        return key

    def _yes(self, completion: Any) -> bool:
        try:
            text = str(completion["choices"][0]["message"]["content"])
        except (TypeError, KeyError, IndexError) as error:
            raise EngineError(
                f"{self.url}: expected choices with a message, got "
                f"'{escape_ascii(completion)[:MAX_ERROR_BYTES]}'"
            ) from error
        match = re.match(r"\W*(yes|no)\b", text.rpartition("</think>")[2], re.I)
        if match is None:
            raise EngineError(
                f"{self.url}: expected yes or no of '{self.name}', got "
                f"'{escape_ascii(text)[:MAX_ERROR_BYTES]}'. Change the question, or use another "
                "model"
            )
        return match[1].lower() == "yes"


def _jpeg(image: np.ndarray) -> str:
    import cv2

    data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1]
    return f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"
