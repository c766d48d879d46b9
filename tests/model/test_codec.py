"""The codec writes every model value once, reads it back equal, and says what is wrong with a bad one."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from types import GenericAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jobwatchdog import model
from jobwatchdog.model import (
    Action,
    ActionFinished,
    ActionId,
    Event,
    IncidentId,
    JobId,
    Json,
    Origin,
    Outcome,
    PlanId,
    Receipt,
    Signal,
    SignalsObserved,
    StepReport,
    Verb,
)
from jobwatchdog.model.codec import CodecError, decode, dumps, encode, loads

CLASSES = sorted(
    (c for c in vars(model).values() if isinstance(c, type) and dataclasses.is_dataclass(c)), key=lambda c: c.__name__
)

json_values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def values_of(hint: object) -> st.SearchStrategy[object]:
    """A strategy for a field's declared type, built from the annotations as the codec's coders are."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=2).map(tuple)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(st.text(max_size=5), values_of(args[1]), max_size=3)
    if args and not isinstance(hint, GenericAlias):
        if any(typing.get_origin(a) is list for a in args):
            return json_values
        return st.none() | values_of(next(a for a in args if a is not type(None)))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        leaves = [c for c in CLASSES if issubclass(c, hint)]
        return st.sampled_from(leaves).flatmap(values_of_class)
    assert isinstance(hint, type)
    if hint is float:
        return st.floats() | st.integers(-1000, 1000)
    return st.from_type(hint)


def values_of_class(cls: type) -> st.SearchStrategy[object]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{f.name: values_of(hints[f.name]) for f in dataclasses.fields(cls)})


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_a_round_trip_changes_no_byte(cls: type[object]) -> None:
    """For every class of the model: what is written reads back and is written the same."""

    @given(values_of_class(cls))
    @settings(
        max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    def check(value: object) -> None:
        text = dumps(value)
        again = loads(cls, text)
        assert type(again) is type(value)
        assert dumps(again) == text

    check()


def test_whole_numbers_in_time_fields_are_floats() -> None:
    """`now_s=5` and `now_s=5.0` are equal, so they are the same bytes."""
    assert dumps(model.Tick(now_s=5)) == dumps(model.Tick(now_s=5.0)) == '{"is":"Tick","now_s":5.0}'


def test_nan_and_infinity_survive() -> None:
    """A NaN loss is what a detector is about; standard JSON cannot say it, the codec can."""
    report = StepReport(framework="x", step=1, loss=math.nan, grad_norm=math.inf)
    text = dumps(report)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"bare {word} in JSON"))
    again = loads(Signal, text)
    assert isinstance(again, StepReport)
    assert again.loss is not None
    assert math.isnan(again.loss)
    assert again.grad_norm == math.inf


def test_events_carry_signals_of_any_class() -> None:
    """A field declared by a base class reads back as the class that was written."""
    event = SignalsObserved(now_s=1.0, signals=(StepReport(framework="x", step=3, origin=Origin(rank=1)),))
    assert loads(Event, dumps(event)) == event


def test_key_order_does_not_matter() -> None:
    """Equal values give equal bytes however their mappings were filled."""
    one = Receipt(action=ActionId("a"), outcome=Outcome.DONE, data={"b": 1, "a": 2})
    two = Receipt(action=ActionId("a"), outcome=Outcome.DONE, data={"a": 2, "b": 1})
    assert dumps(ActionFinished(now_s=0, receipt=one)) == dumps(ActionFinished(now_s=0, receipt=two))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"is": "Tick", "now_s": "soon"}, "Event.now_s: a number expected, 'soon' read"),
        ({"is": "Tick", "now_s": 1.0, "colour": 1}, "Tick has no field colour"),
        ({"is": "Tick"}, "Tick lacks now_s"),
        ({"is": "Tock", "now_s": 1.0}, "'Tock' is no class of the model"),
        ({"now_s": 1.0}, "no 'is' says which Event"),
        ({"is": "Job", "id": "x", "launcher": "local"}, "Event expected, Job read"),
        ([1], "an object expected"),
        (
            {"is": "ActionFinished", "now_s": 1.0, "receipt": {"action": "a", "outcome": "great"}},
            "Event.receipt.outcome: 'great' is no Outcome; there are done, failed",
        ),
        ({"is": "ActionFinished", "now_s": 1.0, "receipt": {"action": 3, "outcome": "done"}}, "str expected, 3 read"),
        ({"is": "SignalsObserved", "now_s": 1.0, "signals": [{"is": "StepReport"}]}, "Event.signals[0]"),
    ],
)
def test_a_bad_document_is_told_where_and_why(data: Json, message: str) -> None:
    """The path, what was read, and what would fit."""
    with pytest.raises(CodecError) as caught:
        decode(Event, data)
    assert message in str(caught.value)


def test_what_json_cannot_say_is_refused_on_the_way_out() -> None:
    """A set in an action's arguments is our mistake, found before it is written."""
    args = typing.cast("dict[str, Json]", {"x": {1, 2}})
    action = Action(
        id=ActionId("a"), key="k", verb=Verb.NOTIFY, job=JobId("j"), attempt=0,
        incident=IncidentId("i"), plan=PlanId("p"), args=args,
    )  # fmt: skip
    with pytest.raises(CodecError, match=r"Action\.args: JSON has no word for"):
        encode(action)
    with pytest.raises(CodecError, match="no class of the model"):
        encode(object())
