"""Triggers are data for a multi-pattern engine: RE2 syntax, known ids, no parser that fails on odd lines."""

from __future__ import annotations

import re

import re2
from hypothesis import given
from hypothesis import strategies as st

from jobwatchdog.signals import steps


def test_every_trigger_is_re2_and_belongs_to_a_parser() -> None:
    """RE2 knows no look-ahead and no back-references."""
    for parser, pattern in steps.STEP_TRIGGERS:
        assert parser in steps.PARSERS
        re2.compile(pattern)


def test_every_trigger_has_enough_literal_text() -> None:
    """A pattern of classes alone would make the engine stop at every line."""
    for _, pattern in steps.STEP_TRIGGERS:
        assert len(re.findall(r"[A-Za-z:\[<]", pattern)) >= 2, pattern


@given(st.sampled_from(sorted(steps.PARSERS)), st.text(max_size=400))
def test_no_parser_fails_on_any_text(parser: str, line: str) -> None:
    """Logs hold anything; a parser that does not understand says nothing."""
    assert isinstance(steps.parse_trigger(parser, line, steps.new_state()), list)


@given(st.sampled_from(sorted(steps.PARSERS)), st.text("0123456789.,|:=[]<>{}'\"/ -+eEnaifstploINKMB%\t", max_size=200))
def test_no_parser_fails_on_number_soup(parser: str, line: str) -> None:
    """The characters that step lines are made of, in any order."""
    assert isinstance(steps.parse_trigger(parser, line, steps.new_state()), list)
