"""Which policy holds: that of the ConfigMap, or the last good one while it cannot be read."""

import logging

from gpulet.api import names
from gpulet.api.policy import Policy, PolicyError, read_policy
from gpulet.controller.actions import Tell
from gpulet.controller.world import Raw

log = logging.getLogger("gpulet.policy")


class PolicyInForce:
    """Reads the ConfigMap again whenever its text changes."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._text: str | None = None
        self._fault: Tell | None = None

    def read(self, config_map: Raw | None) -> Policy | None:
        """``config_map``: as it is now, None if there is none.

        None: what is there cannot be read and nothing good was ever seen. Then nothing may be planned, for under
        defaults every model could be rolled over; what serves goes on serving.
        """
        text = (config_map or {}).get("data", {}).get("policy.yaml")
        if text is None:
            # A deleted ConfigMap changes nothing, for the same reason; one that never was means the defaults.
            self._policy = self._policy or Policy()
        elif text != self._text:
            self._take(config_map or {}, text)
        return self._policy

    @property
    def fault(self) -> Tell | None:
        """What is wrong with the ConfigMap, as an Event on it; None: nothing."""
        return self._fault

    def _take(self, config_map: Raw, text: str) -> None:
        self._text, self._fault = text, None
        try:
            self._policy = read_policy(text, source=f"ConfigMap {names.POLICY_CONFIG_MAP}")
            log.info("now in force: %s", self._policy.model_dump_json(by_alias=True))
        except PolicyError as error:
            held = "nothing is planned until it is mended" if self._policy is None else "the last good one holds"
            message = f"{error}; {held}"
            log.error("%s", message)
            regarding = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": config_map["metadata"]}
            self._fault = Tell(regarding, "InvalidPolicy", message, warning=True)
