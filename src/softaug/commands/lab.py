"""``softaug lab [AGENT ...]``: a local page on which you change what policies see while they act."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path

from softaug.errors import UserError
from softaug.trust import add_trust_argument

DEFAULT_AGENTS = ("zoo:walker_stand-sac", "zoo:walker_stand-soda_overlay")
DEFAULT_PORT = 8383


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "agents",
        metavar="AGENT",
        nargs="*",
        help=f"directory of a run, zoo:NAME, hf:ORG/NAME or FILE.onnx of `softaug export`; by default {' and '.join(DEFAULT_AGENTS)}",
    )
    parser.add_argument("--checkpoint", default="last", help="weights: last, best or a number of decisions")
    parser.add_argument(
        "--videos",
        default="",
        metavar="DIR",
        help="videos for backgrounds and video modes; a folder or a registered name",
    )
    parser.add_argument(
        "--link", default="", metavar="URL", help="start with the settings of a link that the page gave"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; others than this computer's own need --i-know",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=None,
        help=f"port; by default {DEFAULT_PORT}, or another one if that is taken",
    )
    parser.add_argument(
        "--i-know",
        action="store_true",
        help="listen on an address that others can reach: whoever has the link can run simulations here and upload files, "
        "and nothing is encrypted",
    )
    parser.add_argument(
        "--pages",
        type=int,
        default=4,
        metavar="N",
        help="pages that may be open at once; each has processes of its own",
    )
    parser.add_argument(
        "--browser", action=argparse.BooleanOptionalAction, default=True, help="open the page in the browser"
    )
    add_trust_argument(parser)


def run(args: argparse.Namespace) -> int:
    from softaug.envs.factory import modes_of
    from softaug.lab.agents import load_agents
    from softaug.lab.settings import Settings, check_mode, query_of

    try:
        from softaug.lab.server import Lab, allowed_hosts, make_server
    except ModuleNotFoundError as error:
        raise UserError(f"softaug lab needs {error.name}; run: pip install 'softaug[lab]'") from None
    check_host(args.host, args.i_know)
    if not 1 <= args.pages <= 64:
        raise UserError(f"--pages must be from 1 to 64, not {args.pages}")
    query, at = split_link(query_of(args.link))
    settings = Settings.from_query(query)
    agents = load_agents(
        args.agents or DEFAULT_AGENTS, checkpoint=args.checkpoint, videos=args.videos, trust=args.trust
    )
    for agent in agents:
        check_mode(settings.mode, modes_of(agent.config), own=agent.config.own_env)
    # uvicorn raises the signal again when it has shut down; as an exception it still lets the folder be deleted.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with (
        contextlib.closing(listen(args.host, args.port)) as listener,
        tempfile.TemporaryDirectory(prefix="softaug-lab-") as folder,
    ):
        port = listener.getsockname()[1]
        lab = Lab(agents, Path(folder), allowed_hosts(args.host, port), max_pages=args.pages)
        name = f"[{args.host}]" if ":" in args.host else args.host
        link = "&".join(part for part in (query, at and f"at={at}") if part)
        address = f"http://{name}:{port}/{lab.token}/{link and '?' + link}"
        print(f"softaug lab: {address}\nCtrl-C ends it.", flush=True)
        if args.i_know:
            print(
                "warning: everybody who has this address can use the lab, and nothing is encrypted",
                file=sys.stderr,
            )
        if args.browser:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        with contextlib.suppress(KeyboardInterrupt):
            make_server(lab).run(sockets=[listener])
    return 0


def split_link(query: str) -> tuple[str, str]:
    """The settings of a link, and where its episodes are."""
    parts = query.split("&")
    at = [part.partition("=")[2] for part in parts if part.startswith("at=")]
    return "&".join(part for part in parts if part and not part.startswith("at=")), at[0] if at else ""


def check_host(host: str, i_know: bool) -> None:
    """Refuse addresses that others can reach, unless the user knows what that means."""
    from softaug.lab.server import is_loopback

    if is_loopback(host):
        return
    if not host or _stands_for_all(host):
        raise UserError(
            f"--host {host or repr(host)} stands for every address; give the one that is to be opened, so that no other is "
            "answered"
        )
    if not i_know:
        raise UserError(
            f"--host {host} can be reached by others: whoever has the link can run simulations here and upload files, and "
            "nothing is encrypted; if you want that, add --i-know (an SSH tunnel to 127.0.0.1 is safer)"
        )


def _stands_for_all(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name, or another way to write an address, as 0 for 0.0.0.0
        pass
    try:
        return not any(socket.inet_aton(host))
    except OSError:
        return False


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket; without a port given, the usual one or, if that is taken, any."""
    ports = [DEFAULT_PORT, 0] if port is None else [port]
    for number in ports:
        try:
            return socket.create_server(
                (host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except (OSError, OverflowError) as error:
            failure = error
    raise UserError(f"cannot listen on {host} port {ports[0]} ({failure}); choose another --port or --host")
