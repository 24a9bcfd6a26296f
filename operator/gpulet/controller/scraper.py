"""Asks the running programs how they are: Triton's figures, serving reports, tuning progress."""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp
import yarl

from gpulet.api import names, workload
from gpulet.api.workload import ServeReport, TuneProgress
from gpulet.controller.cache import Cache
from gpulet.controller.observations import WINDOW_S, Observations, ReplicaFigures
from gpulet.controller.world import Key
from gpulet.metrics.triton import Scrape, parse, window
from gpulet.status.gpulet import pod_ready

log = logging.getLogger("gpulet.scrape")

PERIOD_S = 5.0
_TIMEOUT_S = 3.0
_LONGEST_ANSWER = 4 * 2**20
"""Bytes. What runs in the pods is the user's: an endless answer must not fill our memory."""


class Scraper:
    """Holds the last minute of scrapes a pod. A pod that cannot be reached keeps its last figures (failure case J9)."""

    def __init__(self, cache: Cache, session: aiohttp.ClientSession) -> None:
        self._cache, self._session = cache, session
        self._scrapes: dict[Key, deque[Scrape]] = {}
        self._heard_s: dict[Key, float] = {}
        """Of each ready pod: when it last told its figures, or else when it was first asked."""
        self._reports: dict[Key, ServeReport] = {}
        self._progress: dict[Key, TuneProgress] = {}

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.gather(*(ask() for ask in self._questions()))
            self._forget()
            await asyncio.sleep(PERIOD_S)

    def observations(self) -> Observations:
        """What is known now."""
        objects = self._cache.objects()
        figures = {}
        for key, scrapes in self._scrapes.items():
            model = objects["InferenceModel"].get((key[0], self._model_of(key)))
            if model is None or len(scrapes) < 2:
                continue
            if time.monotonic() - scrapes[-1].at_s > WINDOW_S and not pod_ready(objects["Pod"].get(key)):
                continue  # it has served nobody for a whole window
            quantile = model["spec"]["slo"].get("percentile", 99.0) / 100
            seen = window(scrapes[0], scrapes[-1], quantile=quantile)
            figures[key] = ReplicaFigures(seen.requests, seen.seconds, seen.mean_ms, seen.percentile_ms)
        now_s = time.monotonic()
        return Observations(
            figures=figures,
            silent_s={key: now_s - heard_s for key, heard_s in self._heard_s.items()},
            reports=dict(self._reports),
            progress=dict(self._progress),
        )

    def _questions(self) -> list[Callable[[], Awaitable[None]]]:
        questions: list[Callable[[], Awaitable[None]]] = []
        for key, pod in self._cache.objects()["Pod"].items():
            labels = pod["metadata"].get("labels") or {}
            address = pod.get("status", {}).get("podIP")
            if labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY or not address or not self._is_ours(pod):
                continue
            role = labels.get(names.LABEL_ROLE)
            if role == "serve":
                questions.append(partial(self._ask_server, key, pod, address))
            elif role == "tracker":
                questions.append(partial(self._ask_tracker, (key[0], labels.get(names.LABEL_JOB, "")), address))
        return questions

    def _is_ours(self, pod: dict[str, Any]) -> bool:
        """Anybody can write our labels on a pod and so choose whom we ask: its owner has to be an object we know."""
        objects = self._cache.objects()
        namespace = pod["metadata"]["namespace"]
        return any(
            (owner := objects.get(reference["kind"], {}).get((namespace, reference["name"]))) is not None
            and owner["metadata"]["uid"] == reference["uid"]
            for reference in pod["metadata"].get("ownerReferences") or ()
            if reference["kind"] in ("Gpulet", "TuningJob") and reference.get("controller")
        )

    async def _ask_server(self, key: Key, pod: dict[str, Any], address: str) -> None:
        if pod_ready(pod):
            self._heard_s.setdefault(key, time.monotonic())
        else:
            self._heard_s.pop(key, None)
        try:
            text = await self._fetch(address, workload.REPORT_PORT, "/report")
            report = ServeReport.model_validate(json.loads(text))
            if report != self._reports.get(key):
                self._reports[key] = report
                self._cache.touch()
            if pod_ready(pod):
                text = await self._fetch(address, workload.METRICS_PORT, "/metrics")
                self._add(key, parse(text, self._model_of(key), at_s=time.monotonic()))
                self._heard_s[key] = time.monotonic()
        except Exception as error:  # whatever a user's pod answers must not end the operator
            log.debug("%s/%s: %s", *key, error)

    async def _ask_tracker(self, job: Key, address: str) -> None:
        try:
            text = await self._fetch(address, workload.PROGRESS_PORT, "/progress")
            progress = TuneProgress.model_validate(json.loads(text))
        except Exception as error:  # as above
            log.debug("tracker of %s/%s: %s", *job, error)
            return
        if progress != self._progress.get(job):
            self._progress[job] = progress
            self._cache.touch()

    async def _fetch(self, address: str, port: int, path: str) -> str:
        """Text of a bounded length, from that address and no other. Raises ValueError or aiohttp's errors."""
        url = yarl.URL.build(scheme="http", host=address, port=port, path=path)
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError(f"{url}: HTTP {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > _LONGEST_ANSWER:
                    raise ValueError(f"{url}: more than {_LONGEST_ANSWER} bytes")
            return body.decode(errors="replace")

    def _add(self, key: Key, scrape: Scrape) -> None:
        scrapes = self._scrapes.setdefault(key, deque())
        if scrapes and scrape.requests < scrapes[-1].requests:
            scrapes.clear()
        scrapes.append(scrape)
        # One scrape older than the window stays, so that the window is full.
        while len(scrapes) > 2 and scrape.at_s - scrapes[1].at_s >= WINDOW_S:
            scrapes.popleft()

    def _model_of(self, key: Key) -> str:
        pod = self._cache.objects()["Pod"].get(key) or {"metadata": {}}
        return str((pod["metadata"].get("labels") or {}).get(names.LABEL_MODEL, ""))

    def _forget(self) -> None:
        objects = self._cache.objects()
        for known in (self._scrapes, self._reports, self._heard_s):
            for key in known.keys() - objects["Pod"].keys():
                del known[key]
        for job in self._progress.keys() - objects["TuningJob"].keys():
            del self._progress[job]
