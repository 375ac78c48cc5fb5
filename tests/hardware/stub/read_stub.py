"""Run under the stub: reads it through the real nvidia-ml-py and prints what came, as JSON lines.

Arguments: how to read (`once`, or the number of readings), seconds between them, patience in seconds, and files to make
or remove (`+PATH`, `-PATH`) before the second reading.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

import msgspec

from nearpeak.hardware.live.nvml_source import NvmlSource
from nearpeak.hardware.live.sampler import DeviceSampler

stub = ctypes.CDLL("libnvidia-ml.so.1")
how, pause_s, patience_s, *changes = sys.argv[1:]
source = NvmlSource(patience_s=float(patience_s))
with DeviceSampler([source]) as sampler:
    if how == "once":
        print(msgspec.json.encode(sampler.read_once()).decode())  # noqa: T201
    else:
        for number in range(int(how)):
            if number == 1:
                for change in changes:
                    path = Path(change[1:])
                    path.write_text("79") if change[0] == "+" else path.unlink()
            begun = time.monotonic()
            snapshot = sampler.read()
            line = {"took_s": time.monotonic() - begun, "calls": stub.stub_calls(), "snapshot": snapshot}
            print(msgspec.json.encode(line).decode())  # noqa: T201
            time.sleep(float(pause_s))
