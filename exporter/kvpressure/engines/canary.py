"""Requests one token of an engine through its own API, with the limits of requests for its metrics page."""

from __future__ import annotations

import json
from typing import Any, Final

from yarl import URL

from kvpressure.config.target import Target
from kvpressure.model.record import SourceError, record
from kvpressure.model.samples import CanaryReport, CanaryResult
from kvpressure.net.credentials import Authorization, FileName
from kvpressure.net.http import HttpClient, HttpStatusError, Reply, UnansweredError
from kvpressure.net.schedule import Clock
from kvpressure.printable import brief
from kvpressure.runtimes.runtime import Asking

MAX_ANSWER_BYTES: Final = 64 * 1024
"""A completion of one token is half a kilobyte long, a list of models somewhat longer."""

LIST_SECONDS: Final = 10.0
"""For the list of models, which is no evidence of the engine: the API process answers it alone."""

COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
MODELS: Final = "/v1/models"
_PROMPT: Final = "a"
_ANSWER: Final = {COMPLETIONS: "choices", EMBEDDINGS: "data"}
_REJECTED: Final = (429, 503)
_UNAUTHORIZED: Final = (401, 403)


class _NotPossibleError(Exception):
    """The server does not accept requests of one token; the message says why."""


@record
class CanaryTarget:
    """The engine of a canary: `model_name` as on its page, "" for the first that the server lists.

    `rank` is set where several ranks serve behind the target. `api_key_file` replaces the target's own credentials.
    """

    target: Target
    model_name: str
    asking: Asking
    rank: str | None = None
    api_key_file: FileName = None


class CanarySource:
    """Sends canaries to one engine. The path and the model's name are kept from one request to the next."""

    def __init__(self, engine: CanaryTarget, clock: Clock, *, deadline_seconds: float) -> None:
        self._engine = engine
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._model = engine.model_name
        self._listed = False
        self._path = COMPLETIONS

    async def send(self) -> CanaryReport:
        """Send one canary, with at most three requests for path and model; raises nothing but cancellation."""
        self._sent, self._began = self._clock.wall(), self._clock.monotonic()
        rank, named_in = self._engine.rank, self._engine.asking.rank_header
        if rank is not None and not (named_in and rank.isascii() and rank.isdecimal()):
            return self._not_possible("several ranks serve behind this address, and none can be reached alone")
        target, key = self._engine.target, self._engine.api_key_file
        own = Authorization(target.bearer_token_file, target.basic_auth)
        authorization = Authorization(key, None, setting="engines.canary.api_key_file") if key else own
        client = HttpClient(self._clock, tls=target.tls, authorization=authorization, cap_bytes=MAX_ANSWER_BYTES)
        try:
            return await self._send(client)
        except _NotPossibleError as error:
            return self._not_possible(str(error))
        except UnansweredError:
            text = f"a request of one token got no answer in {self._deadline_seconds:g} s"
            return self._report(CanaryResult.TIMEOUT, text, unanswered=True)
        except HttpStatusError as error:
            return self._not_possible(error.sentence)
        except SourceError as error:
            result = CanaryResult.TIMEOUT if error.reason == "timeout" else CanaryResult.ERROR
            too_large = f"the answer is longer than {MAX_ANSWER_BYTES // 1024} KiB"
            why = too_large if error.reason == "too_large" else error.sentence
            return self._report(result, f"a request of one token failed: {why}")
        finally:
            await client.aclose()

    async def _send(self, client: HttpClient) -> CanaryReport:
        if not self._model:
            await self._look_up_model(client)
        reply = await self._post(client, self._path)
        if reply.status == 404 and await self._look_up_model(client):
            reply = await self._post(client, self._path)
        if _is_unsupported(reply) and self._path == COMPLETIONS:
            other = await self._post(client, EMBEDDINGS)
            if not _is_unsupported(other):
                self._path, reply = EMBEDDINGS, other
        return self._judge(reply)

    def _judge(self, reply: Reply) -> CanaryReport:
        status, path = reply.status, self._path
        if status == 200:
            return self._answered(reply, path)
        if status in _REJECTED and not self._is_dead(reply):
            text = (
                f"the server turned a request of one token away ({status}): it lives, which says nothing of its engine"
            )
            return self._report(CanaryResult.REFUSED, text)
        if status >= 500:
            text = f"a request of one token was answered with {status}"
            if self._is_dead(reply):
                return self._report(CanaryResult.ERROR, f"{text}: the engine process is dead", unanswered=True)
            return self._report(CanaryResult.ERROR, f"{text}, which does not say whether the engine works")
        if status in _UNAUTHORIZED:
            raise _NotPossibleError(
                f"{path} requires an API key ({status}): name its file in engines.canary.api_key_file"
            )
        raise _NotPossibleError(f"{path} answered with {status}")

    def _answered(self, reply: Reply, path: str) -> CanaryReport:
        found = _parsed(reply.body)
        if not isinstance(found, dict) or not found.get(_ANSWER[path]):
            raise _NotPossibleError(f"{path} answered with something else than a token: is this an engine's API?")
        seconds = max(0.0, self._clock.monotonic() - self._began)
        took = f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
        return self._report(CanaryResult.ANSWERED, f"a request of one token was answered in {took}", unanswered=False)

    async def _look_up_model(self, client: HttpClient) -> bool:
        """Use the first model that the server lists; False where that is not another one. Requested once."""
        if self._listed:
            return False
        self._listed = True
        try:
            answer = await client.get(self._url(MODELS), LIST_SECONDS)
        except SourceError:
            return False  # the canary itself decides
        found = _parsed(answer.body)
        models = found.get("data") if isinstance(found, dict) else None
        first = models[0] if isinstance(models, list) and models else None
        name = first.get("id") if isinstance(first, dict) else None
        if not isinstance(name, str) or not name or name == self._model:
            return False
        self._model = name
        return True

    async def _post(self, client: HttpClient, path: str) -> Reply:
        body: dict[str, object] = {"model": self._model}
        if path == COMPLETIONS:
            body |= {"prompt": _PROMPT, "max_tokens": 1, "temperature": 0, "stream": False}
        else:
            body |= {"input": _PROMPT}
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._engine.rank is not None:
            headers[self._engine.asking.rank_header] = self._engine.rank
        return await client.post(self._url(path), json.dumps(body).encode(), self._deadline_seconds, headers)

    def _url(self, path: str) -> URL:
        """Return the address of `path`, below the prefix of the metrics page."""
        target, page = self._engine.target, self._engine.asking.page
        prefix = target.path.removesuffix(page) if target.path.endswith(page) else ""
        return URL(target.url + prefix + path)

    def _is_dead(self, reply: Reply) -> bool:
        text = reply.body.decode("utf-8", "replace")
        return any(words in text for words in self._engine.asking.dead)

    def _not_possible(self, why: str) -> CanaryReport:
        return self._report(CanaryResult.NOT_POSSIBLE, f"a request of one token is not possible here: {why}")

    def _report(self, result: CanaryResult, text: str, *, unanswered: bool | None = None) -> CanaryReport:
        return CanaryReport(self._sent, self._clock.wall(), result, unanswered, brief(text, 300))


def _is_unsupported(reply: Reply) -> bool:
    """Return whether the server does not serve such requests."""
    return 400 <= reply.status < 500 and reply.status not in (*_UNAUTHORIZED, *_REJECTED)


def _parsed(body: bytes) -> Any:
    """Return the JSON of a body, None for anything else."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
