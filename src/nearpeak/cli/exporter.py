"""`nearpeak exporter`: the devices of this machine as metrics for Prometheus."""

from __future__ import annotations

import ipaddress
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nearpeak.integrations.prometheus import Names

__all__ = ["command"]

SCHEMA = 1
DEFAULT = "127.0.0.1:9836"


@click.command("exporter")
@click.option("--listen", metavar="HOST:PORT", default=DEFAULT, show_default=True, help="Where to answer scrapes.")
@click.option("--interval", "interval_s", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True,
              help="Seconds between two looks at the devices.")  # fmt: skip
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Answer only those who send this file's text as a bearer token.")  # fmt: skip
@click.option("--names", type=click.Choice(["both", "nearpeak", "dcgm"]), default="both", show_default=True,
              help="Our names, those of DCGM's exporter, or both.")  # fmt: skip
@click.option("--processes", type=click.IntRange(0, 64), default=0, show_default=True, metavar="N",
              help="Give memory of the N largest processes of each device.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print the metrics and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --once: the samples as JSON; else the address as JSON.")
def command(
    listen: str, interval_s: float, token_file: Path | None, names: Names, processes: int, once: bool, as_json: bool
) -> int:
    """Give the readings of this machine's devices to Prometheus.

    Answers at http://127.0.0.1:9836/metrics, to this machine alone unless --listen says otherwise. Drivers are asked
    once an interval however often it is scraped. docs/exporter.md lists the metrics and has a dashboard.
    """
    import prometheus_client as _  # noqa: F401  # named as the missing extra before anything is begun

    address, token = _parse_address(listen), _read_token(token_file)
    if once:
        return _print_once(names, processes, as_json)
    return _serve(address, interval_s, token, names, processes, as_json)


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r}: must be HOST:PORT, as {DEFAULT}.", param_hint="--listen")
    return host.strip("[]") or "0.0.0.0", int(port)


def _read_token(path: Path | None) -> str | None:
    if path is None:
        return None
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < 16 or not token.isascii() or any(sign.isspace() for sign in token):
        raise click.BadParameter(
            f"{path}: a token is one word of at least 16 ASCII signs; make one with: openssl rand -hex 32",
            param_hint="--token-file",
        )
    return token


def _print_once(names: Names, processes: int, as_json: bool) -> int:
    from nearpeak.hardware.live.sampler import DeviceSampler
    from nearpeak.integrations.prometheus import SnapshotCollector, render

    with DeviceSampler() as sampler:
        snapshot = sampler.read_once()
    collector = SnapshotCollector(lambda: snapshot, hostname=socket.gethostname(), names=names, processes=processes)
    click.echo(_samples_json(collector) if as_json else render(collector)[0].decode(), nl=as_json)
    return 0


def _samples_json(collector: Any) -> str:
    import msgspec

    samples = [
        {"name": sample.name, "labels": {name: value for name, value in sample.labels.items() if value},
         "value": sample.value}
        for family in collector.collect()
        for sample in family.samples
    ]  # fmt: skip
    return msgspec.json.format(msgspec.json.encode({"schema": SCHEMA, "samples": samples}), indent=2).decode()


def _serve(
    address: tuple[str, int], interval_s: float, token: str | None, names: Names, processes: int, as_json: bool
) -> int:
    from nearpeak.hardware.live.sampler import DeviceSampler
    from nearpeak.integrations._metric_server import LatestSnapshot, MetricServer
    from nearpeak.integrations.prometheus import SnapshotCollector

    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    latest = LatestSnapshot(DeviceSampler, interval_s)
    collector = SnapshotCollector(latest.get, hostname=socket.gethostname(), names=names, processes=processes)
    with MetricServer(address, latest, collector, token=token) as server:
        _announce(address[0], server.port, token is not None, as_json)
        ended.wait()
    return 0


def _announce(host: str, port: int, guarded: bool, as_json: bool) -> None:
    import msgspec

    from nearpeak.report import terminal

    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
    if as_json:
        click.echo(msgspec.json.encode({"schema": SCHEMA, "url": url}).decode())
    terminal.status(f"Metrics at {url}. Ctrl-C ends it.")
    if not guarded and not _is_loopback(host):
        terminal.status("Anyone who reaches this machine can read them: use --token-file, or a firewall.")


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
