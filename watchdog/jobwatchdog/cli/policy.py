"""`jobwatchdog policy`: write, check, explain and test policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobwatchdog import bundled
from jobwatchdog.cli.console import Exit, Format, err, fail, out, plain_errors, policy_texts, print_json

policy_app = typer.Typer(help="Write, check, explain and test policies.", no_args_is_help=True)

if TYPE_CHECKING:
    from jobwatchdog.testing.policy_tests import Kit

_FORMAT = Annotated[Format, typer.Option("--format", "-f", help="For people or for programs.")]


@policy_app.command("init")
@plain_errors
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("policy.yaml"),
    name: Annotated[str, typer.Option(help="The policy's name.")] = "my-policy",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a commented starter policy that only observes."""
    from jobwatchdog.policy.init import starter

    if path.exists() and not force:
        fail(f"{path} is there already", "give another path, or --force to overwrite it")
    path.write_text(starter(name), encoding="utf-8")
    out.print(f"wrote {path}; next: jobwatchdog policy lint {path}")


@policy_app.command("lint")
@plain_errors
def lint(
    files: Annotated[list[str], typer.Argument(help="Policy files, or names of bundled ones.")],
    format: _FORMAT = Format.TEXT,
) -> None:
    """Say everything that is wrong with policies, with line, column and a suggestion."""
    from jobwatchdog.policy.load import check_policy

    problems = [problem for file, text in policy_texts(files) for problem in check_policy(text, file)[1]]
    errors = [problem for problem in problems if not problem.warning]
    if format is Format.JSON:
        print_json(
            [
                {"file": p.file, "line": p.line, "column": p.column, "message": p.message,
                 "suggestion": p.suggestion, "warning": p.warning}
                for p in problems
            ]
        )  # fmt: skip
    else:
        for problem in problems:
            out.print(str(problem), style="yellow" if problem.warning else "red", markup=False, soft_wrap=True)
        if not errors:
            out.print(f"[green]ok[/]: {len(files)} policies, {len(problems)} warnings")
    raise typer.Exit(Exit.USAGE if errors else Exit.OK)


@policy_app.command("explain")
@plain_errors
def explain(
    policy: Annotated[str, typer.Argument(help="A policy file, or the name of a bundled one.")],
    logs: Annotated[list[str], typer.Argument(help="Logs with the incident: files, folders, or -.")],
    incident: Annotated[str | None, typer.Option("--incident", help="Only this incident's id.")] = None,
    format: _FORMAT = Format.TEXT,
) -> None:
    """Show, for each incident in logs, every rule and guard with the values that decided it."""
    from jobwatchdog.cli.render import plan_words, show_incident
    from jobwatchdog.policy.load import load_policy
    from jobwatchdog.shell.replay import replay

    policies = [load_policy(text, file) for file, text in policy_texts([policy])]
    result = replay(logs, policies)
    chosen = [one for one in result.incidents if incident in (None, one.id)]
    if incident is not None and not chosen:
        fail(
            f"no incident {incident} in these logs", f"there are: {', '.join(i.id for i in result.incidents) or 'none'}"
        )
    if format is Format.JSON:
        wanted = {str(one.id) for one in chosen}
        print_json([entry for entry in result.incidents_json() if entry["id"] in wanted])
        return
    for one in chosen:
        show_incident(one, out)
        asked = result.plans.get(one.id) or result.refusals.get(one.id) or []
        for decision in asked[:1]:
            for check in decision.checks:
                mark = "[green]✓[/]" if check.passed else "[red]✗[/]"
                out.print(f"    {mark} [bold]{check.name}[/]  ", end="")
                out.print(check.because, markup=False, soft_wrap=True)
        for made in result.plans.get(one.id, [])[:1]:
            out.print(f"    [green]→[/] {plan_words(made)}")
        if one.id not in result.plans:
            out.print("    [yellow]→ nothing[/]")
    if not chosen:
        out.print("no incident in these logs")


@policy_app.command("test")
@plain_errors
def test(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Policies, their .test.yaml files, or folders; default: the bundled ones."),
    ] = None,
    format: _FORMAT = Format.TEXT,
) -> None:
    """Run the tests that stand beside policies (x.test.yaml beside x.yaml)."""
    from jobwatchdog.testing.policy_tests import run_policy_tests

    kit = _kit()
    roots = paths or [Path(str(bundled.policies_dir()))]
    files = sorted({file for root in roots for file in _test_files(root)})
    if not files:
        fail(f"no tests found in {', '.join(map(str, roots))}", "a test file is x.test.yaml beside x.yaml")
    rows, failed = [], 0
    for file in files:
        policy_file = file.with_name(file.name.replace(".test.yaml", ".yaml"))
        if not policy_file.exists():
            fail(f"{file} has no policy beside it", f"expected {policy_file}")
        texts = policy_file.read_text(encoding="utf-8"), file.read_text(encoding="utf-8")
        for result in run_policy_tests(texts[0], str(policy_file), texts[1], str(file), kit):
            failed += not result.passed
            rows.append({"file": str(file), "test": result.name, "passed": result.passed, "why": result.message})
    if format is Format.JSON:
        print_json(rows)
    else:
        for row in rows:
            mark = "[green]✓[/]" if row["passed"] else "[red]✗[/]"
            out.print(f"{mark} {row['file']}: {row['test']}", soft_wrap=True)
            if not row["passed"]:
                out.print(str(row["why"]), markup=False, soft_wrap=True)
        (err if failed else out).print(f"{len(rows) - failed} passed, {failed} failed")
    raise typer.Exit(Exit.FOUND if failed else Exit.OK)


def _kit() -> Kit:
    """What tests with log lines need: the real patterns, detectors and causes."""
    from jobwatchdog import plugins
    from jobwatchdog.incidents import CausalTable
    from jobwatchdog.sources.patterns import load_scanner
    from jobwatchdog.testing.policy_tests import Kit

    return Kit(
        scanner=lambda: load_scanner(plugins.installed().registry.catalogues, bundled.signature_texts()),
        detectors_for=plugins.detectors_for(),
        causes=CausalTable.parse(bundled.causal_table_text()),
    )


def _test_files(root: Path) -> list[Path]:
    if root.is_dir():
        return sorted(root.rglob("*.test.yaml"))
    if root.name.endswith(".test.yaml"):
        return [root]
    beside = root.with_name(root.name.replace(".yaml", ".test.yaml"))
    return [beside] if beside.exists() else []


@policy_app.command("schema")
@plain_errors
def schema() -> None:
    """Print the JSON Schema of policies, for editors."""
    from jobwatchdog.policy.schema import json_schema

    print_json(json_schema())


@policy_app.command("list")
@plain_errors
def list_policies(format: _FORMAT = Format.TEXT) -> None:
    """List the bundled policies."""
    from jobwatchdog.cli.console import bundled_policies
    from jobwatchdog.policy.load import load_policy

    found = [(name, load_policy(text, name)) for name, text in bundled_policies().items() if "/" in name]
    if format is Format.JSON:
        print_json([{"name": n, "mode": p.spec.mode.value, "description": p.metadata.description} for n, p in found])
        return
    for name, policy in found:
        out.print(f"[bold]{name}[/]  [dim]{policy.spec.mode}[/]  {policy.metadata.description or ''}")
