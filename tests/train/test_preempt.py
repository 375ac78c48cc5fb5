"""Notices arrive, are told from advice, and never disturb; ranks agree, and a dead one hangs nobody."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clouds import Aws, Azure, Babble, Cloud, Gcp, mute, nobody
from hypothesis import given
from hypothesis import strategies as st

from nearpeak.errors import SettingError
from nearpeak.train import preempt
from nearpeak.train.notices import AWS_POLL_S, AwsSource, AzureSource, GcpSource, Notice, RaySource, read_time
from nearpeak.train.parallel import Ranks
from nearpeak.train.preempt import PREEMPTED_EXIT_CODE, Notices, Preempted, Signs, read_signs
from nearpeak.train.stop_signals import SAME_REQUEST_S

HERE = Path(__file__).parent
TO_FLAG_S = 1.0
"""What a notice may take to raise the flag."""


def wait_for(condition: Callable[[], Any], most_s: float = 5.0) -> float:
    """Seconds until the condition held."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < most_s, "it never came true"
        time.sleep(0.005)
    return time.monotonic() - start


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def iso(seconds: float) -> str:
    return in_seconds(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc1123(seconds: float) -> str:
    return format_datetime(in_seconds(seconds), usegmt=True)


def listening(cloud: str, endpoint: str, **options: Any) -> Notices:
    return Notices([cloud], endpoints={cloud: endpoint}, **options)


# -- AWS ---------------------------------------------------------------------------------------------------------------


def test_aws_interruption_raises_the_flag():
    aws = Aws()
    with aws.serve() as endpoint, listening("aws", endpoint, poll_s=0.2) as notices:
        wait_for(lambda: len(aws.requests) >= 5)  # token, then both items, at least twice
        assert notices.pending is None
        assert [command for command, _ in aws.requests].count("PUT") == 1, "one token serves many requests"
        aws.items["spot/instance-action"] = json.dumps({"action": "terminate", "time": iso(120)})
        assert wait_for(lambda: notices.pending) < TO_FLAG_S
    notice = notices.pending
    assert notice is not None and (notice.source, notice.kind, notice.stop) == ("aws", "terminate", True)
    assert notice.seconds_left is not None and 115 < notice.seconds_left < 121
    assert not aws.problems and not notices.reasons[1:]


def test_aws_is_looked_at_often_enough_for_a_flag_within_five_seconds():
    assert AWS_POLL_S == 4.5
    with Aws().serve() as endpoint:
        source = AwsSource(endpoint)
        start = time.monotonic()
        assert source.look().pause_s + (time.monotonic() - start) < 5.0


def test_aws_rebalance_is_advice_given_once():
    aws = Aws()
    aws.items["events/recommendations/rebalance"] = json.dumps({"noticeTime": iso(0)})
    with aws.serve() as endpoint, listening("aws", endpoint, poll_s=0.05) as notices:
        advice: list[Notice | None] = []
        wait_for(lambda: advice.append(notices.take_advice()) or advice[-1])
        assert advice[-1] is not None and advice[-1].kind == "rebalance" and not advice[-1].stop
        seen = len(aws.requests)
        wait_for(lambda: len(aws.requests) > seen + 4)
        assert notices.take_advice() is None and notices.pending is None
        # the interruption itself still stops
        aws.items["spot/instance-action"] = json.dumps({"action": "stop", "time": iso(120)})
        wait_for(lambda: notices.pending)


def test_aws_token_is_renewed_after_401_and_before_it_expires(monkeypatch):
    short = Aws(token_s=0.15)
    with short.serve() as endpoint, listening("aws", endpoint, poll_s=0.1) as notices:
        wait_for(lambda: [command for command, _ in short.requests].count("PUT") >= 3)
        assert len(notices.reasons) == 1, "an expired token is no failure"
    monkeypatch.setattr(AwsSource, "RENEW_S", AwsSource.TOKEN_S - 1)  # from a second on, a token counts as old
    lasting = Aws()
    with lasting.serve() as endpoint:
        source = AwsSource(endpoint)
        source.look()
        time.sleep(1.05)
        source.look()
    assert [command for command, _ in lasting.requests] == ["PUT", "GET", "GET", "PUT", "GET", "GET"]


# -- Google Cloud ------------------------------------------------------------------------------------------------------


def test_gcp_preemption_raises_the_flag_without_polling():
    gcp = Gcp()
    with gcp.serve() as endpoint, listening("gcp", endpoint) as notices:
        wait_for(lambda: len(gcp.requests) >= 3)
        time.sleep(0.3)
        assert len(gcp.requests) == 3, "the third request waits at the server"
        assert "wait_for_change=true" in gcp.requests[2][1] and "last_etag=etag0" in gcp.requests[2][1]
        gcp.change("preempted", "TRUE")
        assert wait_for(lambda: notices.pending) < TO_FLAG_S
    assert notices.pending is not None and notices.pending.source == "gcp"
    assert notices.pending.seconds_left is not None and 25 < notices.pending.seconds_left <= 30
    assert not gcp.problems


def test_gcp_change_between_two_requests_is_not_missed():
    gcp = Gcp()
    with gcp.serve() as endpoint:
        source = GcpSource(endpoint)
        assert not source.look().notices
        gcp.change("preempted", "TRUE")
        start = time.monotonic()
        assert source.look().notices[0].stop and time.monotonic() - start < TO_FLAG_S


def test_gcp_maintenance_is_advice_and_migration_is_nothing():
    gcp = Gcp()
    with gcp.serve() as endpoint:
        source = GcpSource(endpoint, wait_s=0)
        gcp.change("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
        assert not source.look().notices
        gcp.change("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        (notice,) = source.look().notices
        assert not notice.stop


def test_gcp_an_impostor_is_not_believed(caplog):
    with Babble("TRUE").serve() as endpoint, listening("gcp", endpoint) as notices:
        wait_for(lambda: len(notices.reasons) > 1)
        assert notices.pending is None and "Metadata-Flavor" in notices.reasons[1].because


# -- Azure -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("date", [iso, rfc1123], ids=["iso", "rfc1123"])
def test_azure_eviction_raises_the_flag_and_is_acknowledged(date):
    azure = Azure()
    with azure.serve() as endpoint, listening("azure", endpoint) as notices:
        wait_for(lambda: azure.requests)
        event = azure.schedule("Preempt", date(30))
        assert wait_for(lambda: notices.pending) < TO_FLAG_S
        assert notices.pending is not None and notices.pending.kind == "Preempt"
        assert notices.pending.seconds_left is not None and 27 < notices.pending.seconds_left < 31
        assert not azure.started, "not before the state is saved"
        notices.acknowledge()
        assert azure.started == [event]
    assert not azure.problems and len(notices.reasons) == 1


def test_azure_id_that_changed_is_read_anew():
    azure = Azure()
    with azure.serve() as endpoint, listening("azure", endpoint) as notices:
        azure.schedule("Preempt", iso(30))
        wait_for(lambda: notices.pending)
        azure.events.clear()
        started = azure.schedule("Preempt", "", status="Started")
        notices.acknowledge()
    assert azure.started == [started] and not azure.problems


@pytest.mark.parametrize(
    ("kind", "seconds", "status", "expected"),
    [
        ("Preempt", 30, "Scheduled", "stop"),
        ("Terminate", 60, "Scheduled", "stop"),
        ("Terminate", 600, "Scheduled", "advice"),
        ("Redeploy", 86400, "Scheduled", "advice"),
        ("Reboot", 600, "Started", "stop"),
        ("Freeze", 10, "Scheduled", "nothing"),
    ],
)
def test_azure_what_stops_a_run(kind, seconds, status, expected):
    azure = Azure()
    azure.schedule(kind, iso(seconds), status=status)
    with azure.serve() as endpoint:
        source = AzureSource(endpoint)
        found = ["stop" if notice.stop else "advice" for notice in source.look().notices]
        source.acknowledge()
    assert found == ([] if expected == "nothing" else [expected])
    assert len(azure.started) == (expected == "stop"), "only what stops the run may begin at once"


@pytest.mark.parametrize("date", ["", "soon", "2026-13-77T99:99:99Z", None])
def test_an_unreadable_date_does_not_hide_the_notice(date):
    azure, aws = Azure(), Aws()
    azure.schedule("Preempt", date)
    aws.items["spot/instance-action"] = json.dumps({"action": "terminate", "time": date})
    with azure.serve() as azure_endpoint, aws.serve() as aws_endpoint:
        for source in (AzureSource(azure_endpoint), AwsSource(aws_endpoint)):
            (notice,) = source.look().notices
            assert notice.stop and notice.deadline is None


def test_azure_events_of_other_machines_are_theirs():
    azure = Azure(name="Trainer_0")
    azure.schedule("Preempt", iso(30), machine="trainer_1")
    with azure.serve() as endpoint:
        source = AzureSource(endpoint)
        assert not source.look().notices
        azure.schedule("Preempt", iso(30), machine="TRAINER_0")
        assert len(source.look().notices) == 1


def test_azure_slow_first_answer_is_awaited():
    assert AzureSource.FIRST_WAIT_S >= 120
    azure = Azure(first_s=1.0)
    azure.schedule("Preempt", iso(30))
    with azure.serve() as endpoint, listening("azure", endpoint) as notices:
        wait_for(lambda: notices.pending)
        assert len(notices.reasons) == 1


# -- servers that fail -------------------------------------------------------------------------------------------------

BROKEN = [
    Babble("no JSON at all", Metadata_Flavor="Google", ETag="x"),
    Babble("[1, 2]", Metadata_Flavor="Google"),
    Babble('{"Events": [{"EventType": 3}], "time": 5}', Metadata_Flavor="Google"),
    Babble('{"Events": 7, "time": "soon"}', Metadata_Flavor="Google"),
    Babble("", status=500),
    Babble("\x00\xff", status=302, Location="http://127.0.0.1:1/"),
]


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
@pytest.mark.parametrize("server", BROKEN, ids=lambda server: repr(server.said[1])[:20])
def test_nonsense_is_told_once_and_disturbs_nobody(cloud, server: Babble, caplog, monkeypatch):
    monkeypatch.setattr(preempt, "FIRST_RETRY_S", 0.01)
    fresh = Babble(server.said[1], server.said[0], **server.said[2])
    with caplog.at_level(logging.WARNING, "nearpeak"), fresh.serve() as endpoint:
        with listening(cloud, endpoint, poll_s=0.01) as notices:
            wait_for(lambda: len(fresh.requests) >= 6)
            notices.acknowledge()
        assert len(caplog.records) == 1, "told once"
    assert [r.choice for r in notices.reasons] == [f"notices.{cloud}=on", f"notices.{cloud}=failing"]
    if server.said[1][:2] != '{"':
        assert notices.pending is None


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_nobody_there(cloud, caplog):
    with listening(cloud, nobody()) as notices:
        wait_for(lambda: len(notices.reasons) > 1)
        assert "ConnectionRefused" in notices.reasons[1].because
        assert ("hop limit" in notices.reasons[1].because) == (cloud == "aws")
    assert notices.pending is None


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_closing_does_not_wait_for_a_silent_server(cloud):
    with mute() as endpoint:
        with listening(cloud, endpoint) as notices:
            time.sleep(0.2)
            start = time.monotonic()
        assert time.monotonic() - start < 0.5
        assert not [t for t in threading.enumerate() if t.name.startswith("nearpeak-")]
    assert len(notices.reasons) == 1, "closing is no failure"


def test_closing_ends_a_request_that_waits_for_a_change():
    gcp = Gcp()
    with gcp.serve() as endpoint:
        with listening("gcp", endpoint):
            wait_for(lambda: len(gcp.requests) >= 3)
            start = time.monotonic()
        assert time.monotonic() - start < 0.5


def test_recovers_once_the_server_is_there(monkeypatch, caplog):
    monkeypatch.setattr(preempt, "FIRST_RETRY_S", 0.05)
    gcp, broken = Gcp(), True
    answer = gcp.answer

    def answer_later(request):
        return request.reply(503) if broken else answer(request)

    gcp.answer = answer_later  # type: ignore[method-assign]
    with gcp.serve() as endpoint, listening("gcp", endpoint) as notices:
        wait_for(lambda: len(gcp.requests) > 2)
        broken = False
        gcp.change("preempted", "TRUE")
        wait_for(lambda: notices.pending)


def test_proxies_are_not_asked(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, nobody())
    aws = Aws()
    with aws.serve() as endpoint:
        AwsSource(endpoint).look()
    assert len(aws.requests) == 3


# -- dates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "2020-09-19T18:29:47Z",
        "2020-09-19T18:29:47",
        "2020-09-19T18:29:47.1234567Z",
        "2020-09-19T20:29:47+02:00",
        "2020-09-19T20:29:47+0200",
        " Sat, 19 Sep 2020 18:29:47 GMT ",
        "Sat, 19 Sep 2020 18:29:47 -0000",
    ],
)
def test_dates_of_the_clouds(text):
    unix = read_time(text) - time.monotonic() + time.time()
    assert abs(unix - datetime(2020, 9, 19, 18, 29, 47, tzinfo=UTC).timestamp()) < 0.5


@given(st.text(max_size=30))
def test_other_texts_are_refused_as_values(text):
    try:
        read_time(text)
    except (ValueError, OverflowError):
        return


# -- Ray ---------------------------------------------------------------------------------------------------------------


def fake_ray(monkeypatch, info: Any = None, *, initialised: bool = True, context: Any = None) -> SimpleNamespace:
    holder = SimpleNamespace(preemption_info=info)
    context = context or SimpleNamespace(preemption_context=holder)
    module = SimpleNamespace(get_train_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: initialised))
    monkeypatch.setitem(sys.modules, "ray.train.v2._internal.execution.context", module)
    return holder


def test_ray_is_not_imported():
    assert "ray" not in sys.modules
    assert "notices.ray=off" in {reason.choice for reason in Notices(signs=Signs()).reasons}
    assert "ray" not in sys.modules


def test_ray_preemption_raises_the_flag(monkeypatch):
    holder = fake_ray(monkeypatch)
    with Notices(["ray"]) as notices:
        time.sleep(0.1)
        assert notices.pending is None
        holder.preemption_info = SimpleNamespace(deadline_ms=int((time.time() + 60) * 1000))
        assert wait_for(lambda: notices.pending) < TO_FLAG_S
    assert notices.pending is not None and notices.pending.seconds_left is not None
    assert 55 < notices.pending.seconds_left < 61
    fake_ray(monkeypatch, SimpleNamespace(deadline_ms=None))
    assert RaySource().look().notices[0].deadline is None


@pytest.mark.parametrize(
    ("case", "because"),
    [
        ({"initialised": False}, "does not run under Ray"),
        ({"context": SimpleNamespace(something="else")}, "shows no preemption info"),
    ],
)
def test_ray_that_cannot_be_asked_is_a_reason(monkeypatch, case, because):
    fake_ray(monkeypatch, **case)
    (reason,) = Notices(["ray"]).reasons
    assert reason.choice == "notices.ray=off" and because in reason.because


# -- what is listened to -----------------------------------------------------------------------------------------------


def chosen(notices: Notices) -> dict[str, str]:
    return dict(reason.choice.removeprefix("notices.").split("=") for reason in notices.reasons)


@pytest.mark.parametrize(
    ("label", "text", "cloud"),
    [
        ("sys_vendor", "Amazon EC2\n", "aws"),
        ("product_name", "Google Compute Engine\n", "gcp"),
        ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n", "azure"),
        ("sys_vendor", "Microsoft Corporation\n", None),  # Hyper-V under anybody's desk
        ("sys_vendor", "LENOVO\n", None),
    ],
)
def test_clouds_are_known_by_their_labels(tmp_path, label, text, cloud):
    (tmp_path / label).write_text(text)
    signs = read_signs({}, tmp_path)
    assert signs.cloud == cloud
    states = chosen(Notices(signs=signs))
    assert {name for name in ("aws", "gcp", "azure") if states[name] == "on"} == ({cloud} if cloud else set())
    assert states["signals"] == "on" and set(states) == {"aws", "gcp", "azure", "ray", "signals"}


def test_endpoints_by_argument_and_environment(tmp_path):
    signs = read_signs({"NEARPEAK_METADATA_AZURE": "http://localhost:1", "SLURM_JOB_ID": "7"}, tmp_path)
    assert signs.scheduler == "slurm" and signs.cloud is None
    notices = Notices(signs=signs, endpoints={"gcp": "http://localhost:2"})
    assert {name for name, state in chosen(notices).items() if state == "on"} == {"azure", "gcp", "signals"}
    assert any("slurm" in reason.because for reason in notices.reasons)
    assert read_signs({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path).scheduler == "kubernetes"


def test_one_rank_of_a_machine_asks():
    notices = Notices(["aws", "signals"], local_rank=3)
    assert chosen(notices) == {"aws": "off", "signals": "on"}


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"detect": ["asw"]}, "'asw'"),
        ({"endpoints": {"ibm": "http://x"}}, "'ibm'"),
        ({"detect": ["aws"], "endpoints": {"aws": "169.254.169.254"}}, "expected http://HOST"),
    ],
)
def test_wrong_settings_are_refused(arguments, match):
    with pytest.raises(SettingError, match=match):
        Notices(**arguments)


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_raise_the_flag_and_chain(number):
    heard: list[int] = []
    before = signal.signal(number, lambda n, frame: heard.append(n))
    try:
        mine = signal.getsignal(number)
        with Notices(["signals"]) as notices:
            os.kill(os.getpid(), number)
            wait_for(lambda: notices.pending)
            os.kill(os.getpid(), number)  # at once: the same request, told twice
            time.sleep(0.05)
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)
    assert heard == [number, number]
    assert notices.pending is not None and notices.pending.kind == signal.Signals(number).name
    assert notices.pending.deadline is None and notices.pending.seconds_left is None


def test_sigcont_alone_is_advice():
    with Notices(["signals"]) as notices:
        os.kill(os.getpid(), signal.SIGCONT)
        advice: list[Notice | None] = []
        wait_for(lambda: advice.append(notices.take_advice()) or advice[-1])
        assert notices.pending is None
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: notices.pending)


def test_signals_outside_the_main_thread_are_a_reason():
    found: list[Notices] = []

    def run() -> None:
        with Notices(["signals"]) as notices:
            found.append(notices)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in found[0].reasons[-1].because


def test_a_handler_put_on_top_of_ours_stays():
    before = signal.getsignal(signal.SIGUSR1)
    heard: list[int] = []
    try:
        signal.signal(signal.SIGUSR1, lambda n, frame: heard.append(n))
        with Notices(["signals"]) as notices:
            ours = signal.getsignal(signal.SIGUSR1)
            assert callable(ours)
            signal.signal(signal.SIGUSR1, lambda n, frame: ours(n, frame))
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_for(lambda: heard)
        assert notices.pending is None, "closed: signals pass through to whoever was there before"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_signals_that_end_processes(tmp_path):
    """What cannot be tried in this process: see signalled.py."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = [sys.executable, str(HERE / "signalled.py"), str(SAME_REQUEST_S)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "second SIGTERM": -signal.SIGTERM,
        "SIGINT after SIGTERM": "KeyboardInterrupt",
        "forked child, SIGTERM": -signal.SIGTERM,
        "forked child, SIGUSR1": 0,
        "helper that ignores, SIGTERM": 0,
        "helper that ignores, asked again": 0,
        "after closing": -signal.SIGTERM,
        "leaving": PREEMPTED_EXIT_CODE,
    }


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_exit_code_is_temporary_failure():
    notice = Notice("aws", "terminate", "gone soon")
    with pytest.raises(Preempted) as left:
        preempt.exit_preempted(notice)
    assert left.value.code == PREEMPTED_EXIT_CODE == os.EX_TEMPFAIL == 75
    assert left.value.notice is notice
    assert preempt.told_by_peer().stop


def test_alone_there_is_nobody_to_wait_for():
    assert preempt.agree_to_stop(True, Ranks()) and not preempt.agree_to_stop(False, Ranks())
    assert preempt.everyone_is_here(Ranks(), 0.0)


def test_the_flag_survives_a_sum_and_a_maximum():
    notice = Notice("aws", "terminate", "gone soon")
    flags = [preempt.stop_flag(None), preempt.stop_flag(False), preempt.stop_flag(notice), preempt.stop_flag(True)]
    assert flags == [0.0, 0.0, 1.0, 1.0]
    assert preempt.is_stop(sum(flags)) and preempt.is_stop(max(flags)) and not preempt.is_stop(sum(flags[:2]))


# -- ranks -------------------------------------------------------------------------------------------------------------


def run_ranks(folder: Path, *, torchrun: bool) -> list[dict[str, Any]]:
    """What each of two ranks found; see rollcall.py. Without torchrun, rank 0 keeps the store."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = [str(HERE / "rollcall.py"), str(folder)]
    if torchrun:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        done = subprocess.run([sys.executable, *launcher, *script], env=environment, timeout=60, check=False)
        assert done.returncode == 1, "torchrun says 1, whatever its workers said"
    else:
        port = nobody().rpartition(":")[2]
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        ranks = [
            subprocess.Popen([sys.executable, *script], env={**environment, **meet, "RANK": str(rank)})
            for rank in range(2)
        ]
        assert sorted(rank.wait(60) for rank in ranks) == [-signal.SIGKILL, PREEMPTED_EXIT_CODE]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("torchrun", [True, False], ids=["torchrun", "store kept by the rank that dies"])
def test_ranks_agree_and_a_dead_one_hangs_nobody(tmp_path, torchrun):
    found = run_ranks(tmp_path, torchrun=torchrun)
    for rank in found:
        assert rank["nobody pending"] is False and rank["one pending"] is True
        assert rank["all here"] is True and rank["all here again"] is True
        assert rank["late"] is False, "who comes late must not go on alone"
        assert max(rank["seconds"].values()) < rank["timeout_s"] + 1.0
    (survivor,) = [rank for rank in found if "after a death" in rank]
    assert survivor["after a death"] is False
    assert survivor["agreeing after a death"] == "LostPeerError"
    if torchrun:
        assert survivor["pending"] == "SIGTERM", "torchrun ends the others when one dies"
        assert survivor["loader goes on"], "workers survive what is meant for the run"


def test_clouds_are_strict() -> None:
    """The servers above refuse what the documentation forbids, or the tests would prove nothing."""
    import http.client

    def status(cloud: Cloud, method: str, path: str, **headers: str) -> int:
        with cloud.serve() as endpoint:
            connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=5)
            connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
            code = connection.getresponse().status
            connection.close()
            return code

    assert status(Aws(), "GET", "/latest/meta-data/spot/instance-action") == 401
    assert status(Aws(), "GET", "/latest/api/token", X_aws_ec2_metadata_token_ttl_seconds="60") == 400
    assert status(Aws(), "PUT", "/latest/api/token") == 400
    assert status(Gcp(), "GET", "/computeMetadata/v1/instance/preempted") == 403
    assert status(Azure(), "GET", "/metadata/scheduledevents?api-version=2020-07-01") == 400
    assert status(Azure(), "GET", "/metadata/scheduledevents", Metadata="true") == 400
