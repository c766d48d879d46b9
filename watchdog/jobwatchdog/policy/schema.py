"""JSON Schema of policies, for editors."""

from __future__ import annotations

from typing import Any

from jobwatchdog.policy.model import Policy


def json_schema() -> dict[str, Any]:
    """Return the schema; the same bytes for the same version."""
    schema = Policy.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://jobwatchdog.dev/schema/policy-v1.json",
        **schema,
        "title": "jobwatchdog policy",
    }
