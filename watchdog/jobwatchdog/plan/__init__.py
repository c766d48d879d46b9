"""Ordered actions for one incident, within budgets."""

from jobwatchdog.plan.planner import Planner

__all__ = ["Planner"]
