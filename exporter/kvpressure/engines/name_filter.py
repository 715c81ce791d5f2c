"""Whether one server honours `name[]`, kept between polls. It only decides; `engine.py` sends the requests.

Servers built on prometheus_client's own app answer `{path}/?name[]=…` with those samples. Others answer 404, 405, 400
or a redirect; multi-process servers an empty 200; some the whole page, which serves as well.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal
from urllib.parse import quote

from yarl import URL

from kvpressure.model.errors import (
    BadUrlError,
    CredentialsError,
    NotConnectedError,
    NotMetricsError,
    SourceError,
    TooLargeError,
)
from kvpressure.model.record import record
from kvpressure.model.samples import EnginePage
from kvpressure.net.http import HttpStatusError

FilterSetting = Literal["auto", "always", "never"]

REPROBE_SECONDS: Final = 600.0

# Errors that the plain address would have too: requesting it would only double the load on a server in trouble.
_SHARED: Final = (NotConnectedError, CredentialsError, TooLargeError, BadUrlError)


class Mode(StrEnum):
    """What is known of the server."""

    UNKNOWN = "unknown"
    HONOURED = "honoured"
    IGNORED = "ignored"


@record
class PageUrls:
    """The three addresses of one page."""

    plain: URL
    poll: URL
    full: URL


def page_urls(url: str, path: str, poll_names: tuple[str, ...], all_names: tuple[str, ...]) -> PageUrls:
    """Return the addresses for a server's base URL and its page's path. Raises BadUrlError.

    A user or password in the URL is dropped: credentials come from files only.
    """
    try:
        plain = URL(url.rstrip("/") + "/" + path.lstrip("/")).with_user(None).with_fragment(None)
        if plain.scheme not in {"http", "https"} or not plain.raw_host:
            raise ValueError("no http address")
        return PageUrls(plain, _filtered(plain, poll_names), _filtered(plain, all_names))
    except (ValueError, UnicodeError) as error:
        raise BadUrlError("the target's url is not an http(s) address; check url and path") from error


def _filtered(plain: URL, names: tuple[str, ...]) -> URL:
    query = "&".join(f"name[]={quote(name, safe=':')}" for name in names)
    before = f"{plain.raw_query_string}&" if plain.raw_query_string else ""
    return URL(f"{plain.origin()}{plain.raw_path.rstrip('/')}/?{before}{query}".replace("[]", "%5B%5D"), encoded=True)


class NameFilter:
    """Whether one target honours `name[]`. Times are monotonic seconds.

    The first poll of a server requests its plain page, which surely exists; the poll after it the filtered address.
    """

    def __init__(self, setting: FilterSetting) -> None:
        self._setting = setting
        self._next_probe = 0.0
        self._plain_works = False
        self.mode = Mode.IGNORED if setting == "never" else Mode.UNKNOWN

    @property
    def insists(self) -> bool:
        """Whether the settings forbid the plain address."""
        return self._setting == "always"

    def is_used(self, now: float) -> bool:
        """Whether this poll requests the filtered address first."""
        if self._setting != "auto":
            return self.insists
        if self.mode is Mode.UNKNOWN:
            return self._plain_works
        return self.mode is Mode.HONOURED or now >= self._next_probe

    def falls_back(self, error: SourceError) -> bool:
        """Whether to request the plain address after this error of the filtered one."""
        if self.insists or isinstance(error, _SHARED):
            return False
        if self.mode is not Mode.HONOURED:
            return True
        moved = isinstance(error, HttpStatusError) and error.status < 500
        return moved or isinstance(error, NotMetricsError)

    def plain_answered(self) -> None:
        """Record that the plain address answered with a page."""
        self._plain_works = True

    def ignored(self, now: float) -> None:
        """Record that the plain address had engines and the filtered one had none."""
        self.mode = Mode.IGNORED
        self._next_probe = now + REPROBE_SECONDS

    def was_down(self) -> None:
        """Reset after a failed poll: the server may be another one now, without the filtered address."""
        self.may_have_changed()
        self._plain_works = False

    def may_have_changed(self) -> None:
        """Allow another probe of a server that did not honour `name[]`: it may be another one now."""
        if self._setting == "auto" and self.mode is Mode.IGNORED:
            self.mode = Mode.UNKNOWN


def restarted(before: EnginePage | None, page: EnginePage) -> bool:
    """Return whether the server process is another one: its start changed, a counter fell, or engines appeared."""
    if before is None:
        return False
    if before.started is not None and page.started is not None:
        return before.started != page.started
    counters = {(e.model_name, e.engine): e.counters for e in before.engines}
    if page.engines and not counters:
        return True
    return any(
        value < counters.get((engine.model_name, engine.engine), {}).get(name, value)
        for engine in page.engines
        for name, value in engine.counters.items()
    )
