"""A blocking client of one v2 server on this machine: for warm-up and for measuring, where a library would cost CPU."""

import http.client
import json
from contextlib import suppress
from typing import Any, Self

from gpulet.v2.tensors import payload


class V2Error(RuntimeError):
    """The server answered with an error, or not at all; the message holds its words."""


class V2Client:
    """One kept connection. Use as a context manager; not for several threads."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", timeout_s: float = 60.0) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def metadata(self, model: str) -> dict[str, Any]:
        """Inputs and outputs of a model."""
        answer: dict[str, Any] = json.loads(self._call("GET", f"/v2/models/{model}"))
        return answer

    def live(self) -> bool:
        """Whether the server answers."""
        return self._says_yes("/v2/health/live")

    def model_ready(self, model: str) -> bool:
        """Whether the server serves the model now."""
        return self._says_yes(f"/v2/models/{model}/ready")

    def load(self, model: str, headers: dict[str, str]) -> None:
        """Load a model of the server's repository; raises V2Error with the runtime's own words."""
        self._call("POST", f"/v2/repository/models/{model}/load", b"{}", headers)

    def unload(self, model: str, headers: dict[str, str]) -> None:
        """Begin to unload: requests in flight are still answered, new ones refused. Raises V2Error."""
        self._call("POST", f"/v2/repository/models/{model}/unload", b"{}", headers)

    def unloaded(self, headers: dict[str, str]) -> bool:
        """Whether no model of the server's repository is loaded any more; raises V2Error."""
        models = json.loads(self._call("POST", "/v2/repository/index", b"{}", headers))
        return all(m.get("state", "UNAVAILABLE") == "UNAVAILABLE" for m in models)

    def infer(self, model: str, body: bytes, headers: dict[str, str]) -> bytes:
        """One inference; raises V2Error."""
        return self._call("POST", f"/v2/models/{model}/infer", body, headers)

    def batch(self, metadata: dict[str, Any], size: int, *, seed: int = 0) -> tuple[bytes, dict[str, str]]:
        """Body and headers of a request of ``size`` made-up samples. Raises ValueError."""
        inputs = [tensor | {"shape": _sized([int(d) for d in tensor["shape"]], size)} for tensor in metadata["inputs"]]
        made = payload(metadata | {"inputs": inputs}, None, seed)
        return made.body, made.headers

    def _says_yes(self, path: str) -> bool:
        try:
            self._call("GET", path)
        except V2Error:
            return False
        return True

    def _call(self, verb: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
        try:
            self._connection.request(verb, path, body=body, headers=headers or {})
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise V2Error(f"{verb} {path}: {error or type(error).__name__}") from error
        if response.status != 200:
            raise V2Error(f"{verb} {path}: {_reason(answer)} (HTTP {response.status})")
        return answer


def _reason(answer: bytes) -> str:
    """The server's words, without the trace of a Python model."""
    text = answer.decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error"])
    return text.split("\n\nAt:")[0].strip()[:500]


def _sized(shape: list[int], size: int) -> list[int]:
    """The shape with a free batch dimension set to ``size`` and every other free dimension to 1."""
    return [size if shape[0] < 0 else shape[0], *(1 if d < 0 else d for d in shape[1:])] if shape else []
