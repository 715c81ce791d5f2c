from dataclasses import replace

from kvpressure.advice.advise import Limit, Limits
from kvpressure.advice.recommendation import LOOK, REFUTED, Change, Recommendation, Setup
from kvpressure.model.action import AFTER, NOW, Action
from kvpressure.model.verdict import Cause
from tests.support.advice_cases import LIMITS, THRESHOLDS, diagnosis

SETTLE = THRESHOLDS.advice.settle_seconds
CAP = Action("cap_prompt", "Cap prompts", "", new="prompts 4,000", value=4000, when=NOW)
REPLICA = Action("add_replica", "Add a replica", "", new="2", value=2, when=NOW)
SMALL_KV = Action("kv_cache_dtype", "Keep the KV cache in 8 bits", "", new="fp8", when=AFTER)
LOOK_AGAIN = Action(LOOK, "Look again before anything is changed", "", when=NOW)
NO_HELP = Action("would_not_help", "Do not change these", "")


class Incident:
    """An incident of KV pressure, at which somebody looks."""

    def __init__(self) -> None:
        self.recommendation = Recommendation()
        self.verdict = diagnosis(Cause.KV_CACHE_PRESSURE, detail="admission")
        self.begin = self.verdict.since
        self.asked: list[Change] = []

    def look(
        self,
        seconds: float,
        *actions: Action,
        limits: Limits = LIMITS,
        replicas: int = 1,
        restarts: int = 0,
        detail: str = "admission",
    ) -> tuple[Action, ...]:
        """Return the actions so long after the begin."""

        def advise(change: Change) -> tuple[Action, ...]:
            self.asked.append(change)
            return actions

        verdict = replace(self.verdict, t=self.begin + seconds, detail=detail)
        return self.recommendation.follow(verdict, Setup.of(limits, replicas, restarts=restarts), THRESHOLDS, advise)


def test_a_step_is_settled_once_the_verdict_is_old_enough():
    incident = Incident()
    assert incident.look(SETTLE - 1, CAP)[0].since is None
    (first,) = incident.look(SETTLE, REPLICA)
    assert (first.key, first.since, first.revised) == ("add_replica", incident.begin + SETTLE, "")


def test_the_settled_step_stays_the_first_with_its_value_whatever_else_would_be_chosen_now():
    incident = Incident()
    incident.look(SETTLE, REPLICA)
    found = incident.look(300, CAP, SMALL_KV, REPLICA)
    assert [(one.key, one.order) for one in found] == [("add_replica", 1), ("cap_prompt", 2), ("kv_cache_dtype", 3)]
    assert incident.asked[-1] == ("add_replica", 2)


def test_a_step_of_which_nothing_is_predicted_now_stays_as_it_was_settled():
    incident = Incident()
    incident.look(SETTLE, CAP)
    found = incident.look(300, replace(CAP, new="prompts 5,000", value=5000, unpredicted="too little is known"))
    assert (found[0].new, found[0].expectation) == ("prompts 4,000", "not predicted: too little is known")
    assert [one.key for one in incident.look(400, REPLICA)] == ["cap_prompt", "add_replica"]


def test_replicas_are_as_many_as_demand_takes_now_whatever_was_settled():
    incident = Incident()
    incident.look(SETTLE, REPLICA)
    for unpredicted in ("", "too little is known"):
        (first,) = incident.look(300, replace(REPLICA, new="4", value=4, unpredicted=unpredicted))
        assert (first.new, first.value, first.since) == ("4", 4, incident.begin + SETTLE)


def test_a_step_that_is_predicted_to_help_no_more_is_revised_once_that_lasts_and_does_not_come_back():
    incident = Incident()
    incident.look(SETTLE, CAP)
    assert incident.look(100, REPLICA, NO_HELP)[0].key == "cap_prompt"
    assert incident.look(110, CAP, REPLICA)[0].key == "cap_prompt"
    incident.look(120, REPLICA, NO_HELP)
    first = incident.look(120 + SETTLE, CAP, REPLICA, NO_HELP)[0]
    assert first.key == "cap_prompt"  # it is among the actions again
    incident.look(200, REPLICA, NO_HELP)
    first = incident.look(200 + SETTLE, REPLICA, NO_HELP)[0]
    assert (first.key, first.since, first.revised) == ("add_replica", incident.begin + 200 + SETTLE, REFUTED)
    assert incident.look(300, CAP, REPLICA)[0].key == "add_replica"


def test_between_two_bursts_a_step_that_needs_no_restart_stays_and_one_that_does_waits_for_another_look():
    for step, keys in ((REPLICA, ["add_replica", LOOK]), (SMALL_KV, [LOOK])):
        incident = Incident()
        incident.look(SETTLE, step)
        assert [one.key for one in incident.look(100, LOOK_AGAIN)] == keys
        assert incident.look(150, step)[0].since == incident.begin + SETTLE


def test_what_would_not_help_is_no_step_and_the_first_one_that_is_stands_at_once():
    incident = Incident()
    assert incident.look(SETTLE, NO_HELP)[0].since is None
    first, last = incident.look(100, CAP, NO_HELP)
    assert (first.key, first.since, last.key) == ("cap_prompt", incident.begin + 100, "would_not_help")
    incident.look(200, NO_HELP)
    assert [one.key for one in incident.look(200 + SETTLE, NO_HELP)] == ["would_not_help"]
    assert incident.look(300, CAP, REPLICA, NO_HELP)[0].key == "add_replica"


def test_a_step_that_was_done_is_revised_where_the_cause_holds_on():
    incident = Incident()
    incident.look(SETTLE, REPLICA)
    incident.look(100, SMALL_KV, REPLICA, replicas=2)
    first = incident.look(100 + SETTLE, SMALL_KV, REPLICA, replicas=2)[0]
    assert first.key == "kv_cache_dtype"
    assert first.revised == "there are 2 replicas instead of 1, and the cause persists"
    changed = replace(LIMITS, max_num_seqs=Limit(24))
    incident.look(200, CAP, limits=changed, replicas=2)
    assert incident.look(200 + SETTLE, CAP, limits=changed, replicas=2)[0].revised.startswith("the limits were changed")


def test_each_restart_in_which_the_cause_holds_on_revises_the_step():
    incident = Incident()
    incident.look(SETTLE, REPLICA)
    for restarts, step in enumerate((CAP, SMALL_KV), 1):
        begin = 100.0 * restarts
        incident.look(begin, step, restarts=restarts)
        first = incident.look(begin + SETTLE, step, restarts=restarts)[0]
        assert (first.key, first.revised) == (step.key, "the server was restarted, and the cause persists")


def test_another_detail_revises_the_step_and_one_that_is_chosen_again_stands_since_it_was_settled():
    incident = Incident()
    since = incident.look(SETTLE, REPLICA)[0].since
    incident.look(100, REPLICA, detail="preemption")
    assert incident.look(100 + SETTLE, REPLICA, detail="preemption")[0].since == since
    incident.look(200, CAP, REPLICA)
    assert incident.look(200 + SETTLE, CAP, REPLICA)[0].revised == "it is admission now, and was preemption"


def test_what_was_recommended_is_forgotten_once_the_incident_is_over():
    incident = Incident()
    incident.look(SETTLE, REPLICA)
    over = replace(diagnosis(Cause.HEALTHY), t=incident.begin + 100)
    setup = Setup.of(LIMITS, 1, restarts=0)
    for seconds in (0, SETTLE):
        later = replace(over, t=over.t + seconds)
        assert incident.recommendation.follow(later, setup, THRESHOLDS, lambda _: ()) == ()
    assert incident.look(400, CAP, REPLICA)[0].key == "cap_prompt"
