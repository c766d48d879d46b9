"""The policy that `policy init` writes: commented, and watching only."""

from __future__ import annotations

import re
from typing import Final

_TEMPLATE: Final = """\
# What jobwatchdog does about the failures of your jobs. Check it with `jobwatchdog policy lint FILE`, and see what it
# would have done in the past with `jobwatchdog replay LOGS --policy FILE`.
apiVersion: jobwatchdog/v1
kind: Policy
metadata:
  name: {name}
spec:
  # observe: say what would be done, touch nothing. approve: ask a person first. enforce: act.
  mode: observe

  # Only these jobs; leave it out for all.
  # select: job.labels["tier"] == "pretrain"

  # Where `notify` goes; without it, messages go to the log and the ledger.
  # notify:
  #   oncall: {{webhook: "https://chat.example.org/hooks/oncall"}}
  #   mail: {{command: [/usr/local/bin/page, --team, training]}}

  rules: # the first one that applies is taken
    - name: stopped
      on: [nccl_timeout, nccl_error, hang_no_output, rank_crash, cuda_error]
      when: incident.confidence >= 0.7
      ladder: # one rung for each recurrence within reset_after
        - do:
            - collect: {{stacks: true}}
            - restart: {{from: last_good_checkpoint}}
        - do:
            - restart: {{from: last_good_checkpoint, exclude_nodes: suspects}}
        - do:
            - notify: {{to: oncall, severity: critical}}
      reset_after: 24h
      verify: {{steps_advance: 20, within: 15m}} # else the next rung follows

    - name: broken-gpu
      on: [gpu_lost, ecc, xid, nvlink]
      when: incident.cause_class == "hardware"
      ladder:
        - do:
            - drain: {{nodes: suspects}}
            - restart: {{from: last_good_checkpoint, exclude_nodes: suspects}}
            - notify: {{to: oncall}}
      verify: {{steps_advance: 20, within: 15m}}

    # The same bug would only burn the same GPU hours again: never restarted.
    - name: bug
      on: [config_or_code_bug, cuda_oom, loss_nan]
      ladder:
        - do: [{{notify: {{to: oncall, severity: critical}}}}]

  guardrails:
    restarts: {{max: 4, per: 6h}} # of one job
    drains: {{max: 2, max_fraction: 0.05, per: 24h}} # over the fleet
    breaker: {{failed_actions: 3, within: 30m}} # opens; only a person closes it
    stale_after: 10m # a plan that has not begun by then is dropped
    protect_nodes: ["login-*"]
    approval: [failover_sm]
"""


def starter(name: str = "my-policy") -> str:
    """Return the text of a new policy; odd characters of the name become hyphens."""
    clean = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "my-policy"
    return _TEMPLATE.format(name=clean)
