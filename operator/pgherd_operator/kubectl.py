"""``kubectl pgherd``: the commands of ``pgherd`` for a herd on Kubernetes.

Finds a pod of the herd and has its sidecar's container run the same command; so what is shown and
what is done is the sidecars' word, never the API server's. Needs kubectl, and the right to exec
into the pods.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from pgherd_sidecar.cli import comparing
from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.local.operations.verify import VerifyOptions

from pgherd_operator import importing, leaving, report, verifying
from pgherd_operator.objects import names
from pgherd_operator.objects.config import DATABASE, RUN
from pgherd_operator.verifying import PodClient

_ADMIN = f"--admin={RUN}/server/admin.sock"
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@dataclass(frozen=True)
class _Kubectl:
    """kubectl with the options that say which cluster and namespace."""

    options: tuple[str, ...]

    def replace_us(self, *arguments: str) -> None:
        """Become kubectl."""
        os.execvp("kubectl", ["kubectl", *self.options, *arguments])

    def captured(self, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        """What kubectl prints. An option given twice counts as the last one says."""
        command = ["kubectl", *self.options, *arguments]
        return subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True)

    def apply(self, manifest: str) -> "subprocess.CompletedProcess[bytes]":
        """Make an object."""
        command = ["kubectl", *self.options, "apply", "--filename=-"]
        return subprocess.run(command, check=False, input=manifest.encode(), capture_output=True)

    def pods(self, herd: str) -> list[str]:
        """Names of the herd's pods, those that take writes first."""
        selector = f"--selector={names.CLUSTER}={herd}"
        done = subprocess.run(
            ["kubectl", *self.options, "get", "pods", selector, "--output=json"],
            check=False, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(done.returncode)
        items = json.loads(done.stdout)["items"]
        return [item["metadata"]["name"] for item in sorted(items, key=_is_not_ready)]

    def relay(self, pod: str) -> list[str]:
        """The command that passes a request to a pod's sidecar; see ``PodClient``."""
        into = ["exec", "--stdin", pod, "--container=sidecar", "--", "pgherd", "relay", _ADMIN]
        return ["kubectl", *self.options, *into]

    def member(self, herd: str, wanted: str | None) -> str:
        """The pod that is named, or one of the best.

        Raises:
            ClickException: there is none.
        """
        pods = self.pods(herd)
        if wanted in pods:
            return wanted
        if not pods or wanted is not None:
            raise click.ClickException(f"herd {herd} has no pod {wanted or ''}".rstrip())
        return pods[0]


def _is_not_ready(item: dict[str, dict[str, list[dict[str, str]]]]) -> bool:
    conditions = item["status"].get("conditions", ())
    return ("Ready", "True") not in {(one["type"], one["status"]) for one in conditions}


_on = click.option("--on", metavar="POD", help="Ask this member; by default one that takes writes.")
_rest = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)


@click.group()
@click.option("--namespace", "-n", help="Of the herd.")
@click.option("--context", help="Of the kubeconfig.")
@click.pass_context
def main(ctx: click.Context, namespace: str | None, context: str | None) -> None:
    """Look at, and look after, a herd of PostgreSQL servers."""
    options = {"namespace": namespace, "context": context}
    ctx.obj = _Kubectl(tuple(f"--{key}={value}" for key, value in options.items() if value))


def _aimed(on: str | None, arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take --on out of what is passed on, wherever it stands there before a ``--``.

    Returns:
        Who is asked, and the rest.
    """
    words, rest = iter(arguments), list[str]()
    for word in words:
        name, _, value = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif name != "--on":
            rest.append(word)
        elif not (on := value or next(words, "")):
            raise click.UsageError("--on needs the name of a pod")
    return on, rest


def _ask(command: str, explained: str, *, hidden: bool = False) -> None:
    """Add a command that a sidecar carries out."""

    @main.command(command, help=explained, context_settings=_PASSED_ON, hidden=hidden)
    @_on
    @click.argument("herd")
    @_rest
    @click.pass_obj
    def run(kubectl: _Kubectl, on: str | None, herd: str, arguments: Sequence[str]) -> None:
        on, arguments = _aimed(on, arguments)
        pod = kubectl.member(herd, on)
        kubectl.replace_us(
            "exec", pod, "--container=sidecar", "--", "pgherd", command, _ADMIN, *arguments
        )


_ask("status", "Show how one member is.")
_ask("members", "Show the members of the view, and how far behind each of them is.")
_ask("view", "Show the view: who votes, who proposes, and whether they are a quorum.")
_ask("explain", "Show what the entry of a member's log at a GID is. GID follows the herd.")
_ask("evict", "Throw a member out of the view that does not answer.")
_ask("skip", "Have a transaction that some members can't apply count as without effect.")
_ask(
    "split",
    "Have members without a majority go on, for good, as a herd of their own. "
    "Ask one of them: --on POD.",
)
_ask("promote-partition", "What `split` was called before.", hidden=True)


@main.command(context_settings=_PASSED_ON)
@_on
@click.argument("herd")
@_rest
@click.pass_obj
def psql(kubectl: _Kubectl, on: str | None, herd: str, arguments: Sequence[str]) -> None:
    """Open psql on a member, as superuser."""
    target = f"host={RUN}/server user=postgres dbname={DATABASE}"
    on, arguments = _aimed(on, arguments)
    kubectl.replace_us(
        "exec", "--stdin", *(["--tty"] if os.isatty(0) else []), kubectl.member(herd, on),
        "--container=postgres", "--", "psql", *arguments, target,
    )  # fmt: skip


@main.command(context_settings=_PASSED_ON)
@click.argument("herd")
@_rest
@click.pass_obj
def logs(kubectl: _Kubectl, herd: str, arguments: Sequence[str]) -> None:
    """Show the logs of all members, servers and sidecars."""
    selector = f"--selector={names.CLUSTER}={herd}"
    kubectl.replace_us("logs", selector, "--all-containers", "--prefix", *arguments)


@main.command("verify")
@click.argument("herd")
@comparing.comparison
@click.pass_obj
def compare_members(
    kubectl: _Kubectl,
    herd: str,
    allow_missing: bool,
    max_keys: int,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Compare every replicated table on all members at one GID; exit status 1 if they differ."""
    clients = {pod: PodClient(kubectl.relay(pod), pod) for pod in kubectl.pods(herd)}
    asked = VerifyOptions(allow_missing, max_keys, timeout_s)
    result = options.run(verifying.verify(clients, asked))
    comparing.tell(result, as_json=as_json)


@main.group("import")
def import_() -> None:
    """An import online: bootstrap.importFrom with mode Online."""


@import_.command("status")
@click.argument("herd")
@click.pass_obj
def show_import(kubectl: _Kubectl, herd: str) -> None:
    """Show how far it is, or what is in its way."""
    importing.show(kubectl.captured, herd)


@import_.command("cut-over")
@click.argument("herd")
@click.pass_obj
def cut_over(kubectl: _Kubectl, herd: str) -> None:
    """Stop writes at the source, apply the rest, compare, and say how to connect."""
    importing.aim(kubectl.captured, herd, "CutOver")


@import_.command()
@click.argument("herd")
@click.pass_obj
def abort(kubectl: _Kubectl, herd: str) -> None:
    """Remove everything that it has made, at the source and in the herd."""
    importing.aim(kubectl.captured, herd, "Abort")


@main.group()
def export() -> None:
    """Ways out of a herd."""


@export.command()
@click.argument("herd")
@click.argument("claim")
@click.pass_obj
def plain(kubectl: _Kubectl, herd: str, claim: str) -> None:
    """Make what is on the volume of a member that has left a plain PostgreSQL server's.

    CLAIM is the member's volume claim, kept by storage.onScaleDown: Retain.
    """
    leaving.make_plain(kubectl.captured, kubectl.apply, kubectl.pods(herd), herd, claim)


@main.command("report")
@click.argument("herd")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path),
    help="The file. [default: HERD-report.tar.gz]",
)  # fmt: skip
@click.option(
    "--operator-namespace", default="pgherd-system", show_default=True, help="Of the operator."
)
@click.pass_obj
def make_report(kubectl: _Kubectl, herd: str, output: Path | None, operator_namespace: str) -> None:
    """Write all that helps to understand a herd into one file; no Secrets."""
    path = output or Path(f"{herd}-report.tar.gz")
    try:
        failures = report.write(path, herd, kubectl.captured, operator_namespace)
    except OSError as error:
        raise click.ClickException(str(error)) from error
    for line in failures:
        click.echo(f"not in it: {line}", err=True)
    click.echo(f"{path}: look at it before you pass it on, logs may hold values of rows")


if __name__ == "__main__":
    main()
