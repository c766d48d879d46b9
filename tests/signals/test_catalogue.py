"""A catalogue with mistakes: all are told at once, each with its file and line."""

from __future__ import annotations

import pytest

from jobwatchdog.model import LogMatch
from jobwatchdog.signals.catalogue import Catalogue, CatalogueError, parse_catalogue
from jobwatchdog.signals.database import compile_database, lost_examples, pattern_list
from jobwatchdog.signals.multipattern import Matcher, compile_patterns
from jobwatchdog.signals.scanner import Scanner, StreamInfo

MISTAKES = r"""version: 1
signatures:
  - id: bad-pattern
    kind: storage
    pattern: 'a(b'
    summary: s
    matches: ['ab']
  - id: look-ahead
    kind: storage
    pattern: 'a(?=b)'
    summary: s
    matches: ['ab']
  - id: no-example
    kind: storage
    pattern: 'ab'
    summary: s
  - id: wrong-example
    kind: storage
    pattern: 'ab'
    summary: s
    matches: ['ba']
  - id: wrong-counter-example
    kind: storage
    pattern: 'ab'
    summary: s
    matches: ['ab']
    rejects: ['abc']
  - id: unknown-kind
    kind: storrage
    pattern: 'ab'
    summary: s
    matches: ['ab']
  - id: unknown-key
    kind: storage
    patern: 'ab'
    pattern: 'ab'
    summary: s
    matches: ['ab']
  - id: Bad_Id
    kind: storage
    pattern: 'ab'
    summary: s
    matches: ['ab']
  - id: no-kind
    pattern: 'ab'
    summary: s
    matches: ['ab']
  - id: empty-line
    kind: storage
    pattern: '(ab)*'
    summary: s
    matches: ['ab']
  - id: bad-unless
    kind: storage
    pattern: 'ab'
    unless: '[z'
    summary: s
    matches: ['ab']
  - id: unless-takes-all
    kind: storage
    pattern: 'ab'
    unless: 'c*'
    summary: s
    matches: ['ab']
  - not a mapping
"""

TOLD = [
    (3, "bad-pattern: bad pattern 'a(b'"),
    (8, "look-ahead: bad pattern"),
    (13, "no-example: `matches` needs at least one real line"),
    (17, "wrong-example: does not match its example 'ba'"),
    (22, "wrong-counter-example: matches its counter-example 'abc'"),
    (28, "unknown-kind: 'storrage' is not a valid Kind"),
    (33, "unknown-key: unknown key `patern`"),
    (39, "Bad_Id: `id` must be lower-case words joined by hyphens"),
    (44, "no-kind: role cause needs a `kind`"),
    (48, "empty-line: pattern '(ab)*' matches an empty line"),
    (53, "bad-unless: bad `unless` '[z'"),
    (59, "unless-takes-all: `unless` 'c*' matches an empty line"),
    (1, "expected a mapping for a signature, found 'not a mapping'"),
]


def one(id: str, pattern: str, example: str = "ab", trigger: str = "") -> str:
    more = f", trigger: '{trigger}'" if trigger else ""
    return f"  - {{id: {id}, kind: storage, pattern: '{pattern}', summary: s, matches: ['{example}']{more}}}\n"


def catalogue(*entries: str) -> str:
    return "version: 1\nsignatures:\n" + "".join(entries)


def test_every_mistake_is_told_at_once() -> None:
    """In the order of the file."""
    with pytest.raises(CatalogueError) as caught:
        parse_catalogue(MISTAKES, "site.yaml")
    told = [(problem.line, problem.message) for problem in caught.value.problems]
    assert len(told) == len(TOLD)
    for (line, words), (wanted_line, wanted) in zip(told, TOLD, strict=True):
        assert line == wanted_line
        assert wanted in words
    assert str(caught.value).startswith("site.yaml:3: signature bad-pattern: ")


def test_the_mistakes_of_several_files_are_told_together() -> None:
    """A site mends them in one go."""
    texts = [("a.yaml", catalogue(one("x", "a("))), ("b.yaml", "- no"), ("c.yaml", catalogue(one("y", "b)")))]
    with pytest.raises(CatalogueError) as caught:
        Catalogue.parse(texts)
    assert [problem.file for problem in caught.value.problems] == ["a.yaml", "b.yaml", "c.yaml"]


def test_an_id_is_taken_once() -> None:
    """The problem names both places."""
    with pytest.raises(CatalogueError, match=r"b\.yaml:3: id x is taken by a\.yaml:3"):
        Catalogue.parse([("a.yaml", catalogue(one("x", "ab"))), ("b.yaml", catalogue(one("x", "ab")))])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\nsignatures: [", "site.yaml:3: not YAML"),
        ("", "site.yaml:1: expected a mapping with a list under `signatures`"),
        ("version: 2\nsignatures: []", "site.yaml:1: version 2 is not known; this reads version 1"),
        ("version: 1\nsignatures: {a: b}", "site.yaml:1: expected a mapping"),
    ],
)
def test_a_file_that_is_no_catalogue_says_why(text: str, words: str) -> None:
    """With the line where reading stopped."""
    with pytest.raises(CatalogueError) as caught:
        parse_catalogue(text, "site.yaml")
    assert str(caught.value).startswith(words)


def test_all_patterns_that_only_the_multi_pattern_engine_refuses_are_told_at_once() -> None:
    """RE2 reads them; Hyperscan has bounds of its own."""
    text = catalogue(
        one("fine", "ab"), one("far", "(?:ab.{900}){900}c"), one("well", "cd"), one("wide", "(?:x.{800}){800}y")
    )
    parsed = Catalogue(parse_catalogue(text, "site.yaml", check=False))
    with pytest.raises(CatalogueError) as caught:
        compile_database(parsed)
    assert [problem.line for problem in caught.value.problems] == [4, 6]
    assert all("refused: " in problem.message for problem in caught.value.problems)


def test_examples_that_the_engine_loses_are_told() -> None:
    """Hyperscan has lost matches of good patterns; here it looks for other ones, which comes to the same."""
    parsed = Catalogue(parse_catalogue(catalogue(one("first", "ab"), one("second", "abc?")), "site.yaml"))
    told = [str(problem) for problem in lost_examples(parsed, Matcher(compile_patterns(["ab", "^abc?"])))]
    assert len(told) == 1
    assert told[0].startswith(
        "site.yaml:4: signature second: the multi-pattern engine loses 'xxx ab'; bound the classes"
    )


def test_a_trigger_stands_in_every_example() -> None:
    """Else the pattern would never be tried on such a line."""
    entry = one("x", "a+b", trigger="zz")
    with pytest.raises(CatalogueError, match="its trigger is not in its example 'ab'"):
        parse_catalogue(catalogue(entry), "site.yaml")
    with pytest.raises(CatalogueError, match=r"bad `trigger` 'a\('"):
        parse_catalogue(catalogue(one("x", "a+b", trigger="a(")), "site.yaml")


def test_the_engine_looks_for_the_trigger_and_the_pattern_decides() -> None:
    """A line with the trigger alone is no match."""
    parsed = Catalogue(parse_catalogue(catalogue(one("x", "a+b", "quota aab", "quota")), "site.yaml"))
    assert pattern_list(parsed)[0] == "quota"
    scanner = Scanner(parsed)
    stream = scanner.open(StreamInfo("x.log"))
    found = scanner.feed(stream, b"quota ok\naab without it\nthe quota: aaab\n")
    assert [(match.text, match.origin.line) for match in found if isinstance(match, LogMatch)] == [
        ("the quota: aaab", 3)
    ]
