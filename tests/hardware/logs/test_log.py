from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from small_logs import APPS, CSV, DMON, DMON_CSV, GRAFANA, PMON, PROMETHEUS, QUERY, ROCM, TABLE, XML

from nearpeak.errors import DataError
from nearpeak.hardware.logs.log import DeviceLog, parse_log, read_log
from nearpeak.hardware.logs.text import to_lines
from nearpeak.hardware.reading import Reading

MIB = 2**20
START_NS = 1_772_359_200_000_000_000
"""2026-03-01 10:00:00 UTC."""


def parse(text: str, name: str = "log") -> DeviceLog:
    return parse_log(to_lines(text.encode()), name)


def of(log: DeviceLog, key: str) -> list[Reading]:
    return [reading for reading in log.readings if reading.key == key]


def test_csv() -> None:
    log = parse(CSV)
    first, second = of(log, "0")
    assert first.at_ns == START_NS and second.at_ns == START_NS + 10**9
    assert (first.busy_percent, first.power_w, first.temperature_c) == (97.0, 390.1, 61.0)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (38000 * MIB, 40960 * MIB)
    last = of(log, "1")[1]
    assert last.busy_percent is None and last.why_missing("busy_percent") == "unsupported"
    assert last.power_w is None and last.why_missing("power_w") == "error" and last.state == "ok"
    assert [(d.index, d.name, d.uuid) for d in log.devices] == [
        (0, "NVIDIA A100-SXM4-40GB", "GPU-aaaa"),
        (1, "NVIDIA A100-SXM4-40GB", "GPU-bbbb"),
    ]


@pytest.mark.parametrize(
    ("change", "readings"),
    [
        (lambda text: text.replace(" %", "").replace(" MiB", "").replace(" W", ""), 4),  # nounits
        (lambda text: text.replace("\n", "\r\n"), 4),
        (lambda text: "﻿" + text, 4),
        (lambda text: text + "\n" + text.replace("2026/03/01", "2026/03/02"), 8),  # started again, with its header
        (lambda text: text.replace(", ", ";").replace(".", ",").replace("utilization,gpu", "utilization.gpu"), 4),
        (lambda text: text.replace("390.10", "390,10").replace("391.00", "391,00"), 4),
    ],
)
def test_csv_as_others_write_it(change: object, readings: int) -> None:
    assert callable(change)
    text = change(CSV)
    if ";" in text:
        text = text.replace("memory,", "memory.").replace("power,", "power.").replace("temperature,", "temperature.")
    log = parse(text)
    assert len(log.readings) == readings
    first = of(log, "0")[0]
    assert (first.busy_percent, first.power_w, first.memory_used_bytes) == (97.0, 390.1, 38000 * MIB)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(CSV.replace("\n", "\r\n").encode(encoding))
    assert of(read_log(path), "0")[0].power_w == 390.1
    assert codecs.lookup(encoding)


def test_rows_without_numbers_are_told_apart_by_their_rounds() -> None:
    rows = "".join(
        f"2026/03/01 10:00:{second:02}.{50 * device:03}, NVIDIA L4, {10 * device} %\n"
        for second in range(10)
        for device in range(4)
    )
    log = parse("timestamp, name, utilization.gpu [%]\n" + rows)
    assert [reading.busy_percent for reading in of(log, "3")] == [30.0] * 10
    assert len(log.devices) == 4


def test_a_cut_line_is_read_as_far_as_it_is_whole() -> None:
    log = parse(CSV[:-20])
    assert len(log.readings) == 4
    assert [event.kind for event in log.events] == ["cut_line"]
    assert of(log, "1")[1].memory_used_bytes == 37000 * MIB and of(log, "1")[1].power_w is None


def test_a_clock_that_is_set_back_is_counted_on() -> None:
    later = CSV.split("\n", 1)[1].replace("10:00:0", "09:00:0")
    log = parse(CSV + later)
    times = [reading.at_ns for reading in of(log, "0")]
    assert times == sorted(times) and len(set(times)) == 4
    assert times[-1] - times[0] < 10 * 10**9
    assert [event.kind for event in log.events] == ["clock_change"]


def test_output_without_header_is_read_by_the_command_above_it() -> None:
    text = "$ nvidia-smi --query-gpu=timestamp,utilization.gpu,power.draw --format=csv,noheader,nounits\n"
    log = parse(text + "2026/03/01 10:00:00.000, 97, 200.5\n2026/03/01 10:00:01.000, 98, 201.5\n")
    assert [(r.busy_percent, r.power_w) for r in log.readings] == [(97.0, 200.5), (98.0, 201.5)]


def test_processes() -> None:
    log = parse(APPS)
    (reading,) = log.readings
    assert reading.processes is not None
    assert [(use.pid, use.name, use.memory_bytes) for use in reading.processes] == [
        (10, "python a, b.py", 500 * MIB),
        (11, "python", None),
    ]


def test_query() -> None:
    log = parse(QUERY)
    first, second = log.readings
    assert (first.device, second.device, first.at_ns) == (0, 1, START_NS)
    assert first.throttle_reasons == ("power_cap", "thermal")
    assert (first.pcie_width, first.pcie_width_max, first.pcie_generation_max) == (8, 16, 3)
    assert (first.ecc_corrected, first.ecc_uncorrected, first.pages_retired) == (3, 0, 3)
    assert (first.temperature_slowdown_c, first.temperature_shutdown_c) == (93.0, 96.0)
    assert (first.clock_hz, first.clock_max_hz) == (900e6, 1590e6)
    assert first.compute_mode == "exclusive_process" and first.page_retirement_pending is False
    assert first.processes is not None and second.processes == ()
    assert [(use.pid, use.kind, use.name) for use in first.processes] == [
        (4711, "compute", "python train.py"),
        (4712, "graphics", "Xorg"),
    ]
    assert first.other["power_readings.power_management"] == "Supported"
    assert log.devices[0].pci_id == "10de:1eb8" and log.devices[0].driver_version == "470.82.01"


def test_query_again_and_again() -> None:
    later = QUERY.replace("10:00:00", "10:00:05")
    assert [reading.at_ns - START_NS for reading in of(parse(QUERY + later), "0")] == [0, 5 * 10**9]


def test_xml() -> None:
    log = parse(XML)
    card, instance = of(log, "0")[0], of(log, "0:0")[0]
    assert card.busy_percent is None and card.why_missing("busy_percent") == "unsupported"
    assert card.mig_enabled is True and card.power_w == 120.25
    assert instance.memory_total_bytes == 5952 * MIB and instance.ecc_uncorrected == 0
    assert card.other["supported_clocks.1215 MHz"] == "1440 MHz, 1425 MHz"
    assert card.throttle_reasons == ("power_cap",)
    assert card.other["throttle reason idle"] is False  # which reasons were asked is kept where not all were
    assert log.devices[1].multiprocessors == 14 and log.devices[1].gpu_instance == 3
    assert [event.kind for event in log.events] == ["accounted_process"]


def test_xml_that_is_cut_gives_its_whole_devices() -> None:
    log = parse(XML + XML[: len(XML) // 2])
    assert len(of(log, "0")) == 1
    assert "cut_line" in {event.kind for event in log.events}


def test_dmon_with_dates_and_headers_in_between() -> None:
    log = parse(DMON)
    first, second = of(log, "0")
    assert second.at_ns - first.at_ns == 10**9
    assert (first.busy_percent, first.power_w, first.clock_hz) == (99.0, 250.0, 1380e6)
    assert first.throttle_reasons == ("power_cap",) and first.other["dmon.pviol [%]"] == 35
    assert first.pcie_received_bytes_per_s == 120e6
    idle = of(log, "1")[1]
    assert idle.throttle_reasons == () and idle.ecc_corrected is None


def test_dmon_as_csv_without_times() -> None:
    log = parse(DMON_CSV)
    assert [reading.busy_percent for reading in of(log, "1")] == [20.0, 40.0]
    times = [reading.at_ns for reading in of(log, "0")]
    assert times[1] - times[0] == 10**9
    assert any("without a time" in note for note in log.notes)


def test_pmon() -> None:
    log = parse(PMON)
    first, second = of(log, "0")
    assert first.processes is not None and second.processes is not None
    assert [(use.pid, use.busy_percent, use.memory_bytes) for use in second.processes] == [
        (1234, 55.0, 7100 * MIB),
        (1300, 4.0, 100 * MIB),
    ]
    assert first.processes[0].name == "python3 -m x"
    assert [reading.processes for reading in of(log, "1")] == [(), ()]


def test_table() -> None:
    log = parse(TABLE)
    first, second = log.readings
    assert first.at_ns == START_NS
    assert (first.busy_percent, first.power_w, first.power_limit_w, first.ecc_uncorrected) == (88.0, 155.0, 300.0, 2)
    assert first.compute_mode == "exclusive_process"
    assert second.power_w is None and second.why_missing("power_w") == "error"
    assert first.processes is not None and first.processes[0].pid == 5555
    assert first.other["table.name"] == "Tesla V100-SXM2..."  # cut by the table: not the device's name
    assert log.devices[0].name is None


def test_a_file_that_mixes_formats() -> None:
    log = parse(f"notes of mine\n\n{TABLE}\n{QUERY}\n\n{DMON}\nGPU 0: Tesla V100-SXM2-16GB (UUID: GPU-zz)\n")
    assert set(log.formats) == {"nvidia-smi", "nvidia-smi -q", "nvidia-smi dmon"}
    assert len(log.readings) == 8
    assert "notes of mine" in log.texts[0].lines


def test_prometheus() -> None:
    log = parse(PROMETHEUS)
    assert [(d.index, d.uuid, d.other["host"]) for d in log.devices] == [(0, "GPU-1", "a"), (1, "GPU-2", "b")]
    first, second = of(log, "0")
    assert (first.busy_percent, first.sm_busy_percent, second.sm_busy_percent) == (98.0, 12.5, 25.0)
    assert first.other["label pod"] == "train-0"
    assert of(log, "1")[0].memory_used_bytes == 1000 * MIB


def test_what_an_exporter_prints() -> None:
    text = (
        "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",modelName="NVIDIA L4"} 55\n'
        'DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2",modelName="NVIDIA L4"} 5\n'
        'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",modelName="NVIDIA L4"} 7\n'
    )
    log = parse(text)
    assert [(r.device, r.busy_percent, r.memory_used_bytes) for r in log.readings] == [
        (0, 55.0, 7 * MIB),
        (1, 5.0, None),
    ]


def test_grafana() -> None:
    log = parse(GRAFANA)
    assert [(r.device, r.power_w) for r in log.readings] == [(0, 300.5), (1, 99.0), (0, 310.0)]


def test_grafana_panel_whose_legend_names_the_device_alone() -> None:
    text = "Time,GPU 0,GPU 1\n2026-03-01 10:00:00,55%,1%\n2026-03-01 10:00:30,57%,2%\n"
    log = parse(text, "GPU Utilization-data-2026-03-01.csv")
    assert [reading.busy_percent for reading in of(log, "0")] == [55.0, 57.0]


def test_rocm() -> None:
    log = parse(ROCM)
    first = log.readings[0]
    assert (first.busy_percent, first.power_w, first.clock_graphics_hz) == (87.0, 250.0, 1700e6)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (2**20, 68702699520)
    assert log.devices[0].name == "AMD Instinct MI210" and log.devices[0].vendor == "amd"


def test_a_lost_device_is_a_reading() -> None:
    text = "Unable to determine the device handle for GPU 0000:05:00.0: GPU is lost.  Reboot the system\n"
    log = parse(QUERY + text)
    lost = log.readings[-1]
    assert lost.state == "lost" and lost.device == 1 and "GPU is lost" in (lost.fault or "")
    assert parse(CSV.replace("38000 MiB", "[GPU is lost]")).readings[0].state == "lost"


@pytest.mark.parametrize("text", ["", "\n\n", "hello\nworld\n", "{}", "[1, 2]", '{"a": 1}', "a,b\n1,2\n", "<?xml?>"])
def test_what_is_no_log_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="no readings of devices"):
        parse(text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_log(tmp_path / "none.csv")


def test_output_without_header_or_command_is_told_by_its_units() -> None:
    log = parse(CSV.split("\n", 1)[1])
    first = of(log, "0")[0]
    assert (first.busy_percent, first.power_w) == (97.0, 390.1)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (38000 * MIB, 40960 * MIB)
    assert first.other["column 9"] == 61  # no unit says what it is
    assert any("no header" in note and "utilization.gpu" in note for note in log.notes)


def test_numbers_without_header_and_units_are_not_guessed() -> None:
    with pytest.raises(DataError, match="header line"):
        parse("2026/03/01 10:00:00.000, 97, 38000, 390.10\n2026/03/01 10:00:01.000, 96, 38000, 391.00\n")


def test_old_schemas_and_labels() -> None:
    xml = (
        '<?xml version="1.0" ?>\n<nvidia_smi_log><timestamp>Sun Mar  1 10:00:00 2015</timestamp><gpu id="0000:02:00.0">'
        "<memory_usage><total>4799 MB</total><used>12 MB</used></memory_usage><compute_processes><process_info>"
        "<pid>7</pid><process_name>a.out</process_name><used_memory>9 MB</used_memory></process_info>"
        "</compute_processes><clocks_throttle_reasons><clocks_throttle_reason_unknown>Not Active"
        "</clocks_throttle_reason_unknown></clocks_throttle_reasons></gpu></nvidia_smi_log>\n"
    )
    (reading,) = parse(xml).readings
    assert reading.memory_total_bytes == 4799 * MIB
    assert reading.processes is not None and reading.processes[0].memory_bytes == 9 * MIB
    assert parse(xml).devices[0].pci_bus_id == "00000000:02:00.0"


def test_series_of_the_host_are_no_device() -> None:
    host = '{"metric":{"__name__":"nearpeak_host_cpu_ratio","Hostname":"a"},"values":[[1772359200,"0.5"]]},'
    log = parse(PROMETHEUS.replace('"result":[', '"result":[' + host))
    assert log.readings == parse(PROMETHEUS).readings
    assert log.texts[0].title.startswith("nearpeak_host_cpu_ratio") and log.texts[0].lines
