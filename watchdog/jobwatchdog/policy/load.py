"""Read a policy file: every mistake at once, each with file, line, column and a suggestion."""

from __future__ import annotations

from jobwatchdog.policy.document import PolicyErrors, Problem, read
from jobwatchdog.policy.lints import lints
from jobwatchdog.policy.model import Policy

__all__ = ["PolicyErrors", "Problem", "check_policy", "load_policy"]


def load_policy(text: str, file: str) -> Policy:
    """Return the policy; raise PolicyErrors."""
    policy, problems = check_policy(text, file)
    errors = [problem for problem in problems if not problem.warning]
    if policy is None or errors:
        raise PolicyErrors(errors)
    return policy


def check_policy(text: str, file: str) -> tuple[Policy | None, list[Problem]]:
    """Return the policy, if it can be read, and all problems, warnings included."""
    policy, document, problems = read(text, file, Policy)
    if policy is None or document is None:
        return None, problems
    policy._file = file
    return policy, sorted(lints(policy, document))
