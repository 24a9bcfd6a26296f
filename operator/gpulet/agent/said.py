"""Troubles that last are said once: when they come, when their words change, and when they are over."""

import logging


class Said:
    """What a part last said of each of its works."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[str, str] = {}

    def trouble(self, what: str, error: object) -> None:
        """``what`` does not work now, and why."""
        text = str(error) or type(error).__name__
        if self._last.get(what) != text:
            self._last[what] = text
            self._log.warning("%s: %s", what, text)

    def well(self, what: str) -> None:
        """``what`` works, or nobody wants it any more."""
        if self._last.pop(what, None) is not None:
            self._log.info("%s: works again", what)

    def troubles(self) -> dict[str, str]:
        """What does not work now, in the words last said."""
        return dict(self._last)
