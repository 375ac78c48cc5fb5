"""Device logs that other tools kept: nvidia-smi in all its formats, Prometheus and Grafana exports, rocm-smi.

`read_log` turns any of them, and files that mix them, into `Reading`s. One file here a format; `scan` finds out which
parts of a file have which. Nothing that a log says of a device is dropped: what no figure of a `Reading` holds is in
its `other`, by the log's own name for it.
"""
