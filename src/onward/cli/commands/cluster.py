"""`onward cluster up|status|down|add-node|config`: engines on several machines, by Ray Serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onward.cli.command import CONTEXT, Argument, CommandGroup, session_command
from onward.cli.output.formats import emit, table
from onward.cli.session import Session
from onward.errors import SetupError

if TYPE_CHECKING:
    from onward.engines.cluster.config import ModelConfig

DEFAULT_FILE = Path("cluster.toml")
DEFAULT_PORT = 6379
DEFAULT_IMAGE = "onward:latest"


def up(
    session: Session, config: str | None, model: tuple[str, ...], replicas: int | None, address: str | None,
    port: int | None, num_cpus: int | None, num_gpus: int | None, wait: float, remove_others: bool, keep_others: bool,
) -> None:  # fmt: skip
    from onward.engines.cluster.connection import NoCluster, address_of_cluster, connect, make_token
    from onward.engines.cluster.control import deploy, describe
    from onward.engines.cluster.local_ray import record_head, start_head
    from onward.folders import cache_folder

    if remove_others and keep_others:
        raise SetupError("Pass --remove-others or --keep-others, not both.")
    models = _models(config, model, replicas)
    if address is None:
        make_token()
    try:
        connect(address or "auto")
    except NoCluster:
        if address is not None:
            raise
        _say(f"Starting Ray on this machine, port {port or DEFAULT_PORT}")
        start_head(port or DEFAULT_PORT, {"num_cpus": num_cpus, "num_gpus": num_gpus})
        connect("auto")
        record_head(address_of_cluster(), cache_folder())
    else:
        for flag, value in {"--port": port, "--num-cpus": num_cpus, "--num-gpus": num_gpus}.items():
            if value is not None:
                raise SetupError(
                    f"{flag} is for the start of Ray, which runs already, at {address_of_cluster()}: leave it out, or "
                    "stop Ray first (`onward cluster down`, `ray stop`)."
                )
        _say(f"Joined the Ray cluster at {address_of_cluster()}")
    found = address_of_cluster()
    deploy(models, _say, wait, "remove" if remove_others else "keep" if keep_others else "ask")
    emit(
        session.output,
        {"address": found, **describe()},
        lambda: (
            f"The cluster at {found} serves {', '.join(each.model for each in models)}.\n"
            f"Serve its API from here: onward serve --cluster {found}\n"
            f"Add a machine (run there): onward cluster add-node {found}"
        ),
    )


def status(session: Session, address: str) -> None:
    from onward.engines.cluster.connection import connect
    from onward.engines.cluster.control import describe

    connect(address)
    found = describe()
    emit(session.output, found, lambda: _described(found))


def down(session: Session, address: str, keep_ray: bool) -> None:
    from onward.engines.cluster.connection import address_of_cluster, connect, disconnect
    from onward.engines.cluster.control import remove_all
    from onward.engines.cluster.local_ray import stop_head
    from onward.folders import cache_folder

    connect(address)
    found = address_of_cluster()
    has_others = remove_all(_say)
    disconnect()
    if has_others or keep_ray:
        _say("Ray keeps running.")
    elif stop_head(found, cache_folder()):
        _say("Ray was stopped on this machine.")
    else:
        _say("Ray keeps running: it was not started by `onward cluster up` here. `ray stop` stops it.")


def add_node(session: Session, address: str, num_cpus: int | None, num_gpus: int | None) -> None:
    from onward.engines.cluster.local_ray import join

    join(address, {"num_cpus": num_cpus, "num_gpus": num_gpus})
    _say(f"This machine is now a node of the cluster at {address}. `ray stop` removes it.")


def write_config(
    session: Session, config: str | None, model: tuple[str, ...], replicas: int | None, kuberay: bool,
    image: str | None,
) -> None:  # fmt: skip
    from onward.engines.cluster.manifests import ray_service, serve_yaml

    if image is not None and not kuberay:
        raise SetupError("--image is for --kuberay: `serve deploy` runs what is installed on the nodes.")
    models = _models(config, model, replicas)
    click.echo(ray_service(models, image or DEFAULT_IMAGE) if kuberay else serve_yaml(models), nl=False)


def _models(config: str | None, model: tuple[str, ...], replicas: int | None) -> list[ModelConfig]:
    """Return what is to be served: by the flags, or the file, or cluster.toml of this folder, or storyteller."""
    from onward.compose.unused import refuse_unused

    models = _stated_models(config, model, replicas)
    for each in models:
        try:
            # as each replica would, later and elsewhere; the keys of a table have the names of settings
            refuse_unused(each.settings(), is_server=True, naming=lambda name, _: name)
        except SetupError as problem:
            raise SetupError(f"The model {each.model}: {problem}") from None
    return models


def _stated_models(config: str | None, model: tuple[str, ...], replicas: int | None) -> list[ModelConfig]:
    from onward.engines.cluster.config import parse_config, read_config

    if config is not None and model:
        raise SetupError("Pass a cluster.toml or --model, not both.")
    if model or (config is None and not DEFAULT_FILE.is_file()):
        tables = [{"model": each, "replicas": replicas or 1} for each in model or ("storyteller",)]
        return parse_config({"model": tables}, "--model")
    path = DEFAULT_FILE if config is None else Path(config)
    if replicas is not None:
        raise SetupError(f"--replicas goes with --model: {path} says how many replicas its models have.")
    return read_config(path)


def _described(found: dict[str, Any]) -> str:
    """Return the state of a cluster as text."""
    models = [[each["id"], each["status"], each["replicas"], each["detail"]] for each in found["models"]]
    nodes = [
        [
            each["address"],
            "alive" if each["alive"] else "gone",
            f"{each['resources'].get('CPU', 0):g}",
            f"{each['resources'].get('GPU', 0):g}",
        ]
        for each in found["nodes"]
    ]
    shown = table(["MODEL", "STATUS", "REPLICAS", "DETAIL"], models) if models else "No model: run `onward cluster up`."
    return f"{shown}\n\n{table(['NODE', 'STATE', 'CPUS', 'GPUS'], nodes)}"


def _say(words: str) -> None:
    click.echo(words, err=True)


def _config_argument() -> Argument:
    return Argument(
        "config", "A cluster.toml; by default ./cluster.toml, or storyteller without it.", required=False,
        metavar="[CLUSTER.TOML]",
    )  # fmt: skip


def _model_options() -> list[click.Option]:
    return [
        click.Option(["--model"], multiple=True, metavar="NAME_OR_PATH", help="Model to serve, instead of a file. "
                     "Repeatable."),
        click.Option(["--replicas"], type=click.IntRange(1), metavar="N", help="Replicas of each --model. "
                     " [default 1]"),
    ]  # fmt: skip


def _node_options() -> list[click.Option]:
    return [
        click.Option(["--num-cpus"], type=click.IntRange(0), metavar="N", help="Processors of this machine for "
                     "replicas; 0 for one that only serves the API.  [default all]"),
        click.Option(["--num-gpus"], type=click.IntRange(0), metavar="N", help="GPUs of this machine.  [default all]"),
    ]  # fmt: skip


def _address_option(help: str, default: str | None = "auto") -> click.Option:
    return click.Option(["--address"], metavar="HOST:PORT", default=default, help=help)


HERE = "Address of the Ray cluster; by default the one that this machine is a node of."
_COMMANDS = [
    session_command(
        "up", up,
        "Serve models from a cluster: start Ray on this machine, unless it is running, and as many replicas as "
        "CLUSTER.TOML says. Run it again after changing the file: replicas are replaced one by one, and running "
        "streams finish on the old ones. Other models that the cluster serves are removed only if you say so.",
        [
            _config_argument(), *_model_options(),
            _address_option(HERE, None),
            click.Option(["--port"], type=click.IntRange(1, 10001), metavar="PORT",  # Ray's workers have those above
                         help=f"Port of Ray where it is started here.  [default {DEFAULT_PORT}]"),
            *_node_options(),
            click.Option(["--wait"], type=click.FloatRange(0), default=600.0, metavar="SECONDS",
                         help="How long to wait for the replicas.  [default 600]"),
            click.Option(["--remove-others"], is_flag=True, help="Stop serving models that are not named."),
            click.Option(["--keep-others"], is_flag=True, help="Keep serving models that are not named."),
        ],
        can_connect=False,
    ),
    session_command("status", status, "Show the models, replicas and nodes of a cluster.", [_address_option(HERE)],
                    can_connect=False),
    session_command(
        "down", down,
        "Stop serving: remove the models after their streams have ended, and stop Ray if `up` started it here.",
        [_address_option(HERE),
         click.Option(["--keep-ray"], is_flag=True, help="Leave Ray running.")],
        has_results=False, can_connect=False,
    ),
    session_command(
        "add-node", add_node, "Make this machine a node of the cluster at ADDRESS.",
        [Argument("address", "HOST:PORT, as `onward cluster up` prints it.", metavar="ADDRESS"), *_node_options()],
        has_results=False, can_connect=False,
    ),
    session_command(
        "config", write_config,
        "Write the same cluster for other tools: a file for `serve deploy`, or a RayService for KubeRay.",
        [
            _config_argument(), *_model_options(),
            click.Option(["--kuberay"], is_flag=True, help="Write a RayService manifest."),
            click.Option(["--image"], metavar="NAME",
                         help=f"Container image of the manifest, with onward[cluster].  [default {DEFAULT_IMAGE}]"),
        ],
        has_results=False, can_connect=False,
    ),
]  # fmt: skip

command = CommandGroup(
    "cluster",
    commands=_COMMANDS,
    help="Engines on several machines, by Ray Serve (pip install 'onward[cluster]').",
    context_settings=CONTEXT,
)
