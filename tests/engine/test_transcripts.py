"""Whole incidents as text, reviewed as diffs: `pytest tests/engine --rewrite-transcripts`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobwatchdog.engine import Engine
from jobwatchdog.testing.transcripts import TranscriptError, parse, rewritten

FILES = sorted((Path(__file__).parents[1] / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_engine_decides_what_is_written(
    file: Path, make_engine: Callable[..., Engine], request: pytest.FixtureRequest
) -> None:
    """Every decision, in order, to the letter; invariants hold on the way."""
    text = file.read_text()
    now = rewritten(text, make_engine)
    if request.config.getoption("--rewrite-transcripts"):
        file.write_text(now)
    else:
        assert now.splitlines() == text.splitlines()


def test_there_are_transcripts() -> None:
    """A folder that moved would make the test above pass by testing nothing."""
    assert len(FILES) >= 8


def test_a_transcript_that_cannot_be_read_is_told_where(make_engine: Callable[..., Engine]) -> None:
    """The line that is wrong, and why."""
    with pytest.raises(TranscriptError, match="begins with `policy`"):
        parse("12.0 job\n")
    policy = FILES[0].read_text().partition("\n====\n")[0]
    with pytest.raises(TranscriptError, match=r"cannot play '12\.0 explode'"):
        rewritten(f"{policy}\n====\n12.0 explode\n----\n", make_engine)
