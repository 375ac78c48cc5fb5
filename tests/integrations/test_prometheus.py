"""The exporter: what it tells of a snapshot, who may read it, and that Prometheus and its promtool take it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("prometheus_client")

from nearpeak.errors import SettingError
from nearpeak.hardware.host_reading import HostReading
from nearpeak.hardware.live.sampler import DeviceSampler, Snapshot, SourceState
from nearpeak.hardware.metric_names import DCGM, NATIVE
from nearpeak.hardware.reading import FIGURES, Device, ProcessUse, Reading
from nearpeak.integrations._metric_server import LatestSnapshot, MetricServer
from nearpeak.integrations.prometheus import Names, SnapshotCollector, render

GIB = 2**30
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
DEVICES = (
    Device(index=0, vendor="nvidia", name="NVIDIA H100 80GB HBM3", uuid="GPU-a", pci_bus_id="00000000:01:00.0"),
    Device(index=1, vendor="nvidia", name="NVIDIA H100 80GB HBM3", uuid="GPU-b"),
    Device(index=1, mig=0, vendor="nvidia", uuid="MIG-c", gpu_instance=7, mig_profile="1g.10gb"),
)


def snapshot(at_ns: int = 1_772_359_200 * 10**9) -> Snapshot:
    uses = tuple(ProcessUse(pid=n, name="python", memory_bytes=n * GIB) for n in range(1, 6))
    return Snapshot(
        at_ns=at_ns,
        host=HostReading(at_ns=at_ns, cpu_percent=25.0, core_percent=(100.0, 0.0), memory_total_bytes=64 * GIB),
        devices=DEVICES,
        readings=(
            Reading(
                at_ns=at_ns, device=0, busy_percent=50.0, memory_used_bytes=GIB, power_w=300.5, energy_j=12.5,
                sm_busy_percent=25.0, ecc_uncorrected=0, row_remap_pending=False, processes=uses,
                throttle_reasons=("thermal",),
            ),
            Reading(at_ns=at_ns, device=1, missing={"busy_percent": "unsupported"}, power_w=434.0),
            Reading(at_ns=at_ns, device=1, mig=0, memory_used_bytes=0),
        ),
        sources=(SourceState(vendor="nvidia", state="ok"),),
    )  # fmt: skip


def text(names: Names = "both", processes: int = 0, accept: str = "") -> str:
    return render(SnapshotCollector(snapshot, hostname="h", names=names, processes=processes), accept)[0].decode()


def values(body: str, name: str) -> dict[str, float]:
    """Device and instance → value, of one metric."""
    found = {}
    for line in body.splitlines():
        if line.startswith(name + "{"):
            labels = dict(
                part.split("=", 1) for part in line[len(name) + 1 : line.index("}")].split(",") if "=" in part
            )
            found[f"{labels['gpu']}{labels['GPU_I_ID']}".replace('"', "")] = float(line.split()[-1])
    return found


def test_unknown_has_no_sample() -> None:
    body = text()
    assert values(body, "nearpeak_gpu_busy_ratio") == {"0": 0.5}
    assert values(body, "DCGM_FI_DEV_GPU_UTIL") == {"0": 50.0}
    assert values(body, "nearpeak_gpu_memory_used_bytes") == {"0": GIB, "17": 0.0}
    assert values(body, "DCGM_FI_DEV_FB_USED") == {"0": 1024.0, "17": 0.0}
    assert "temperature" not in body


def test_counters_end_in_total() -> None:
    body = text()
    assert values(body, "nearpeak_gpu_energy_joules_total") == {"0": 12.5}
    assert values(body, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION") == {"0": 12500.0}
    assert values(body, "nearpeak_gpu_ecc_uncorrected_total") == {"0": 0.0}


def test_labels_and_states() -> None:
    body = text()
    assert 'DCGM_FI_PROF_SM_ACTIVE{GPU_I_ID="",GPU_I_PROFILE="",Hostname="h",UUID="GPU-a"' in body
    assert 'model_name="NVIDIA H100 80GB HBM3"' in body and "modelName" not in body
    assert 'modelName="NVIDIA H100 80GB HBM3"' in text("dcgm")  # exactly as DCGM's exporter writes it
    assert 'reason="thermal"' in body and 'state="ok"' in body
    assert 'nearpeak_source_up{vendor="nvidia"} 1.0' in body


def test_names_can_be_chosen() -> None:
    assert "DCGM_" not in text("nearpeak") and "nearpeak_gpu_power" not in text("dcgm")


def test_processes_are_bounded() -> None:
    assert "nearpeak_gpu_process" not in text()
    lines = [line for line in text(processes=2).splitlines() if line.startswith("nearpeak_gpu_process_memory_bytes{")]
    assert [line.split('pid="')[1][0] for line in lines] == ["5", "4"]


def test_the_number_of_series_is_bounded_by_devices() -> None:
    per_device = len(NATIVE) + len(DCGM) + 4 + 9
    assert len([line for line in text().splitlines() if not line.startswith("#")]) <= 3 * per_device + 16
    assert len({metric.name for metric in NATIVE}) == len(NATIVE) > 90
    assert {metric.figure for metric in DCGM} <= set(FIGURES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("names", ["nearpeak", "both"])
def test_promtool_finds_nothing(names: Names) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text(names, processes=3), capture_output=True, text=True, timeout=30
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_openmetrics_is_read_back_by_its_parser() -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    families = {family.name: family for family in text_string_to_metric_families(text(accept=OPENMETRICS))}
    assert families["nearpeak_gpu_energy_joules"].type == "counter"
    assert families["nearpeak_gpu_busy_ratio"].samples[0].value == 0.5


class Source:
    """One vendor's devices; counts how often they are asked, and hangs where a test says so."""

    vendor, state, detail = "nvidia", "ok", None

    def __init__(self) -> None:
        self.devices = list(DEVICES)
        self.asked, self.hang = 0, threading.Event()

    def open(self) -> None: ...
    def ask_slow_now(self) -> None: ...
    def close(self) -> None: ...

    def read(self) -> list[Reading]:
        self.asked += 1
        return list(snapshot(time.time_ns()).readings)


@contextmanager
def serving(source: Source, *, token: str | None = None, interval_s: float = 0.2) -> Iterator[str]:
    latest = LatestSnapshot(lambda: DeviceSampler([source]), interval_s)  # type: ignore[list-item]
    collector = SnapshotCollector(latest.get, hostname="h")
    with MetricServer(("127.0.0.1", 0), latest, collector, token=token) as server:
        yield f"http://127.0.0.1:{server.port}"


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_scrapes_ask_no_driver() -> None:
    source = Source()
    with serving(source, interval_s=60) as url:
        bodies = {get(f"{url}/metrics")[1] for _ in range(50)}
        assert len(bodies) == 1 and "DCGM_FI_DEV_GPU_UTIL" in bodies.pop()
        assert source.asked == 2  # the two looks that the first figures take


def test_what_is_served_goes_on() -> None:
    with serving(Source()) as url:
        first = get(f"{url}/metrics")[1]
        deadline = time.monotonic() + 10
        while get(f"{url}/metrics")[1] == first:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_paths_and_methods() -> None:
    with serving(Source()) as url:
        assert get(url)[0] == 200 and get(f"{url}/nothing")[0] == 404
        assert get(f"{url}/metrics?x=1")[0] == 200
        head = urllib.request.Request(f"{url}/metrics", method="HEAD")
        with urllib.request.urlopen(head, timeout=5) as reply:
            assert reply.read() == b"" and int(reply.headers["Content-Length"]) > 1000


def test_token() -> None:
    with serving(Source(), token="0123456789abcdef") as url:
        assert get(f"{url}/metrics")[0] == 401
        assert get(f"{url}/metrics", Authorization="Bearer wrong")[0] == 401
        assert get(f"{url}/metrics", Authorization="Bearer 0123456789abcdef")[0] == 200


def test_old_figures_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearpeak.integrations._metric_server.STALE_S", 0.0)
    source = Source()
    latest = LatestSnapshot(lambda: DeviceSampler([source]), 0.01)  # type: ignore[list-item]
    monkeypatch.setattr(latest, "start", latest._thread.start)
    with MetricServer(("127.0.0.1", 0), latest, SnapshotCollector(latest.get, hostname="h")) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        deadline = time.monotonic() + 10
        while get(url)[0] != 200:
            assert time.monotonic() < deadline
        latest._stop.set()  # as if a driver hung for good
        while get(url)[0] != 503:
            assert time.monotonic() < deadline
        monkeypatch.setattr("nearpeak.integrations._metric_server.STALE_S", 10.0)


def test_a_port_that_is_taken() -> None:
    with serving(Source()) as url, pytest.raises(SettingError, match="Choose another port"):
        MetricServer(("127.0.0.1", int(url.rpartition(":")[2])), None, None)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)")
def test_a_prometheus_server_scrapes_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    with serving(Source(), token="0123456789abcdef") as url:
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: nearpeak\n"
            f"    authorization: {{credentials_file: {token}}}\n"
            f"    static_configs: [{{targets: ['{url.removeprefix('http://')}']}}]\n"
        )
        with prometheus_server(config, tmp_path) as api:
            found = wait_for(api, 'DCGM_FI_DEV_GPU_UTIL{gpu="0"}')
            assert found["metric"]["model_name"] == "NVIDIA H100 80GB HBM3" and found["value"][1] == "50"
            assert wait_for(api, 'up{job="nearpeak"}')["value"][1] == "1"
            assert wait_for(api, "nearpeak_gpu_energy_joules_total")["value"][1] == "12.5"
            for query in dashboard_queries():
                assert json.loads(get(api + quote(query))[1])["status"] == "success", query


@contextmanager
def prometheus_server(config: Path, folder: Path) -> Iterator[str]:
    port = free_port()
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}/api/v1/query?query="
        finally:
            server.terminate()
            server.wait(timeout=20)


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(api: str, query: str) -> dict:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            status, body = get(api + quote(query))
        except (urllib.error.URLError, ConnectionError):
            status, body = 0, ""
        if status == 200 and (found := json.loads(body)["data"]["result"]) and found[0]["value"][1] != "0":
            return found[0]
        time.sleep(0.2)
    raise AssertionError(f"Prometheus never had {query}")


def test_the_verb_serves_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nearpeak", "exporter", "--listen", "127.0.0.1:0", "--json", "--interval", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as run:
        assert run.stdout is not None
        url = json.loads(run.stdout.readline())["url"]
        assert "nearpeak_host_memory_size_bytes" in get(url)[1]
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=20) == 0


def dashboard_queries() -> list[str]:
    path = Path(__file__).parents[2] / "docs" / "grafana" / "nearpeak-devices.json"
    panels = json.loads(path.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    return [query.replace("$host", ".*").replace("$gpu", ".*") for query in asked]


def test_a_dashboard_asks_for_metrics_that_there_are() -> None:
    asked = " ".join(dashboard_queries())
    known = {metric.name for metric in NATIVE} | {f"{metric.name}_total" for metric in NATIVE if metric.counter}
    known |= {"nearpeak_gpu_throttle_reason", "nearpeak_gpu_state", "nearpeak_host_cpu_ratio"}
    known |= {"nearpeak_host_busiest_core_ratio"}
    used = set(re.findall(r"nearpeak_\w+", asked))
    assert len(used) >= 10 and used <= known, used - known


def test_the_documentation_lists_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "exporter.md").read_text()
    names = [f"{metric.name}_total" if metric.counter else metric.name for metric in NATIVE]
    missing = [name for name in (*names, *(metric.name for metric in DCGM)) if f"`{name}`" not in page]
    assert not missing


@pytest.mark.parametrize("names", ["nearpeak", "dcgm", "both"])
def test_what_it_gives_is_read_back_as_a_log(names: Names) -> None:
    from nearpeak.hardware.logs.log import parse_log

    log = parse_log(text(names).splitlines(), "scrape")
    first, card, instance = log.readings
    assert (first.busy_percent, first.power_w, first.memory_used_bytes) == (50.0, 300.5, GIB)
    assert (first.sm_busy_percent, first.energy_j, first.ecc_uncorrected) == (25.0, 12.5, 0)
    assert (card.busy_percent, card.power_w) == (None, 434.0)
    assert (instance.mig, instance.memory_used_bytes) == (7, 0)
    assert log.devices[0].name == "NVIDIA H100 80GB HBM3" and log.devices[0].uuid == "GPU-a"
