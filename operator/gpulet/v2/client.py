"""A blocking client of one v2 server on this machine: for warm-up and for measuring, where a library would cost CPU."""

import http.client
import json
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
        answer: dict[str, Any] = json.loads(self._call("GET", f"/v2/models/{model}", b"", {}))
        return answer

    def ready(self) -> bool:
        """Whether the server and all its models are ready."""
        try:
            self._call("GET", "/v2/health/ready", b"", {})
        except V2Error:
            return False
        return True

    def infer(self, model: str, body: bytes, headers: dict[str, str]) -> bytes:
        """One inference; raises V2Error."""
        return self._call("POST", f"/v2/models/{model}/infer", body, headers)

    def batch(self, metadata: dict[str, Any], size: int, *, seed: int = 0) -> tuple[bytes, dict[str, str]]:
        """Body and headers of a request of ``size`` made-up samples. Raises ValueError."""
        shapes = {tuple(int(d) for d in i["shape"]) for i in metadata["inputs"]}
        if len(shapes) != 1:
            raise ValueError(f"model {metadata['name']}: inputs of different shapes {sorted(shapes)} cannot be made up")
        shape = next(iter(shapes))
        rest = tuple(1 if d < 0 else d for d in shape[1:])
        made = payload(metadata, (size if shape[0] < 0 else shape[0], *rest), seed)
        return made.body, made.headers

    def _call(self, verb: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        try:
            self._connection.request(verb, path, body=body, headers=headers)
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise V2Error(f"{verb} {path}: {error or type(error).__name__}") from error
        if response.status != 200:
            raise V2Error(f"{verb} {path}: {answer[:500].decode(errors='replace')} (HTTP {response.status})")
        return answer
