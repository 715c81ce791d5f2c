"""Who sends: clients that wait for an answer before they send again, and others that come at a rate."""

import itertools
import random
from functools import partial
from typing import Final

from tests.lab import trace
from tests.lab.api import RETRY_SECONDS, Api
from tests.lab.core import Core
from tests.lab.doubles import Grammar
from tests.lab.messages import SentRequest
from tests.lab.regime import Load
from tests.lab.sessions import FILLER, GROUP, OWN, Session, answer_length, thinking
from tests.lab.world import Answer, Client, World

REFUSED_SECONDS: Final = 30.0
"""Who was refused at the edge asks for something else a while later."""


class Clients:
    """Everybody who sends in one run."""

    def __init__(self, world: World, core: Core, api: Api) -> None:
        self._world, self._core, self._api = world, core, api
        self._clock, self._events = world.clock, world.events
        self._names = itertools.count(1)
        self._compiler_free_at = world.begin

    def enter(self, number: int, load: Load) -> None:
        """Plan when the clients of the regime's load of that number come."""
        regime, begin = self._world.regime, self._world.begin + load.begin
        rng = random.Random(f"{regime.name}/{regime.seed}/{number}")
        for client in range(load.clients):
            # Not all at once: nobody's clients start in the same millisecond.
            early = rng.random()
            made = Client(load, random.Random(rng.random()), client, closed=True)
            if load.turns[1]:
                made.session = self._begun(made)
            start = begin + early * (thinking(load, made.rng) if made.session else 2)
            self._events.at(start, partial(self._send, made))
        if load.trace:
            self._enter_trace(load, Client(load, rng, 0, closed=False))
        if load.rate:
            self._events.at(begin, partial(self._come, Client(load, rng, 0, closed=False)))

    def again(self, client: Client, seconds: float) -> None:
        """Send the next request in so many seconds, if it is a client that waits for its answers."""
        if client.closed:
            self._events.at(self._clock.now + seconds, partial(self._send, client))

    def _come(self, client: Client) -> None:
        if self._clock.now - self._world.begin < client.load.end:
            self._send(client)
            self._events.at(self._clock.now + client.rng.expovariate(client.load.rate), partial(self._come, client))

    def _send(self, client: Client) -> None:
        if self._clock.now - self._world.begin >= client.load.end:
            return
        if self._world.down:
            self.again(client, RETRY_SECONDS)
            return
        if client.load.replicas > 1 and client.rng.random() * client.load.replicas >= 1:
            self._send_elsewhere(client)
            return
        self._ask(client, self._made(client))

    def _ask(self, client: Client, asked: SentRequest) -> None:
        longest = self._world.regime.edge.max_prompt
        if longest is not None and len(asked.tokens) > longest:
            self._world.result.answers.append(Answer(self._clock.now, len(asked.tokens), None, 0.0, ok=False))
            self.again(client, REFUSED_SECONDS)
            return
        self._world.owners[asked.name] = (client, asked)
        if client.load.timeout_seconds:
            timeout = self._clock.now + client.load.timeout_seconds
            self._events.in_this_life(timeout, partial(self._time_out, asked.name))
        self._api.receive(asked)

    def _made(self, client: Client) -> SentRequest:
        load, rng, number = client.load, client.rng, next(self._names)
        if load.turns[1]:
            return self._turn(client, number)
        length = round(rng.uniform(*load.prompt))
        group = rng.randrange(load.prefix_groups)
        shared = [GROUP + group] * min(load.prefix, length - 1)
        own = [OWN + number] + [FILLER] * (length - len(shared) - 1)
        client.pieces_left = load.pieces
        output, longest = answer_length(load, rng), self._world.regime.edge.max_output
        return SentRequest(
            name=f"r{number}",
            tokens=shared + own,
            output=output if longest is None else min(output, longest),
            cut=longest is not None and output > longest,
            arrived=self._clock.now,
            asks=load.asks,
            adapter=1 + rng.randrange(load.adapters) if load.adapters else 0,
            priority=_priority(load, length, rng),
            grammar=self._grammar(load) if load.grammar else None,
            resumable=load.pieces > 0,
            remote=load.remote,
            images=((len(shared), load.image_tokens),) if load.image_tokens else (),
        )

    def _grammar(self, load: Load) -> Grammar:
        """Compiled one after the other."""
        self._compiler_free_at = max(self._compiler_free_at, self._clock.now) + load.grammar_seconds
        return Grammar(self._clock, self._compiler_free_at)

    def _time_out(self, name: str) -> None:
        owner = self._world.owners.pop(name, None)
        if owner is None:
            return
        client, asked = owner
        self._api.give_up(asked)
        seconds = self._clock.now - asked.arrived
        self._world.result.answers.append(Answer(self._clock.now, len(asked.tokens), None, seconds, ok=False))
        self._core.kick()
        self.again(client, 0.2)

    # sessions that grow turn by turn

    def answered(self, client: Client, asked: SentRequest, tokens: int) -> None:
        """A request has ended with so many tokens; its client thinks, and goes on."""
        session = client.session
        if session is not None:
            session.heard(asked.tokens, tokens)
            if session.over:
                client.session = None
        self.again(client, thinking(client.load, client.rng))

    def _begun(self, client: Client) -> Session:
        """A session that is somewhere between its first turn and its last."""
        load, rng = client.load, client.rng
        session = Session(load, rng)
        for _ in range(rng.randrange(max(1, int(load.turns[0])))):
            if session.over:
                break
            session.heard(session.prompt(next(self._names)), answer_length(load, rng))
        return Session(load, rng) if session.over else session

    def _turn(self, client: Client, number: int) -> SentRequest:
        session = client.session = client.session or Session(client.load, client.rng)
        return SentRequest(
            name=f"r{number}",
            tokens=session.prompt(number),
            output=answer_length(client.load, client.rng),
            arrived=self._clock.now,
            sibling=len(session.said) if client.load.replicas > 1 and session.begun else 0,
        )

    def _send_elsewhere(self, client: Client) -> None:
        """Another replica takes this turn, and needs a step for each token of its answer."""
        asked = self._turn(client, next(self._names))
        seconds = asked.output * self._world.regime.cost.step_seconds
        self._events.at(self._clock.now + seconds, partial(self.answered, client, asked, asked.output))

    # recorded requests

    def _enter_trace(self, load: Load, client: Client) -> None:
        for row in trace.requests(self._world.regime, load):
            self._events.at(self._world.begin + load.begin + row.t, partial(self._replay, client, row))

    def _replay(self, client: Client, row: trace.Row) -> None:
        if not self._world.down:
            name = f"r{next(self._names)}"
            self._ask(client, SentRequest(name, row.tokens, row.output, arrived=self._clock.now))

    # sessions whose input comes piece by piece

    def piece_done(self, name: str) -> None:
        """A session's answer to one piece is there; the next piece comes later, or the session ends."""
        client, asked = self._world.owners[name]
        client.pieces_left -= 1
        seconds = client.load.piece_gap_seconds * client.rng.uniform(0.5, 1.5)
        self._events.in_this_life(self._clock.now + seconds, partial(self._next_piece, asked))

    def _next_piece(self, asked: SentRequest) -> None:
        if asked.name not in self._world.owners:
            return
        client, _ = self._world.owners[asked.name]
        if client.pieces_left > 0:
            length = round(client.rng.uniform(*client.load.prompt))
            asked.tokens = [1] * length
            asked.arrived = self._clock.now
            self._core.inbox.append(asked)
        else:
            del self._world.owners[asked.name]
            self._api.give_up(asked)
            self.again(client, client.load.think_seconds)
        self._core.kick()


def _priority(load: Load, length: int, rng: random.Random) -> int:
    # Drawn either way: with and without it clients ask for the same.
    drawn = rng.choice(load.priorities)
    return int(length > load.last_beyond) if load.last_beyond else drawn
