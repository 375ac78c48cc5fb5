from __future__ import annotations

import os
from pathlib import Path

import pytest

from nearpeak.hardware.live.owners import OwnerBook, container_of, slurm_job_of

HEX = "3f2a9c01b7de" + "0" * 52


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
        (f"0::/system.slice/docker-{HEX}.scope\n", "docker:3f2a9c01b7de"),
        (f"12:cpu,cpuacct:/docker/{HEX}\n11:memory:/docker/{HEX}\n", "docker:3f2a9c01b7de"),
        (f"0::/machine.slice/libpod-{HEX}.scope/container\n", "podman:3f2a9c01b7de"),
        ("0::/lxc.payload.train/system.slice\n", "lxc:train"),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod0a1b2c3d_0000_0000_0000_000000000000.slice/cri-containerd-{HEX}.scope\n",
            "containerd:3f2a9c01b7de",
        ),
        (f"4:devices:/kubepods/besteffort/pod0a1b2c3d-0000-0000-0000-000000000000/{HEX}\n", "kubernetes:0a1b2c3d-000"),
    ],
)
def test_containers_are_named_by_the_innermost(cgroup: str, expected: str | None) -> None:
    assert container_of(cgroup) == expected


def test_slurm_jobs_come_from_the_group_or_else_from_the_environment() -> None:
    assert slurm_job_of("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", None) == "4711"
    assert slurm_job_of("4:memory:/slurm/uid_1000/job_12/step_batch\n", b"SLURM_JOB_ID=99\0") == "12"
    assert slurm_job_of("0::/\n", b"HOME=/root\0SLURM_JOB_ID=99\0") == "99"
    assert slurm_job_of("0::/user/job_5/x\n", None) is None  # somebody's folder, not Slurm's
    assert slurm_job_of("0::/\n", None) is None


def test_cpu_time_is_a_share_between_two_looks() -> None:
    times = iter((10.0, 10.1, 20.0, 20.0))
    book = OwnerBook(clock=lambda: next(times))
    first, soon = book.look_up(os.getpid()), book.look_up(os.getpid())
    assert first.cpu_percent is None and soon.cpu_percent is None  # a tenth of a second means nothing
    sum(range(200_000))
    later = book.look_up(os.getpid())
    assert later.cpu_percent is not None and 0 <= later.cpu_percent < 100
    assert later.host_memory_bytes is not None and later.command is not None


def test_a_process_that_is_not_here_is_unknown() -> None:
    assert OwnerBook().look_up(4_194_303 + 1).name is None


def test_in_a_namespace_of_its_own_a_number_may_be_another_process(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()  # not the number that the machine starts with
    book = OwnerBook(tmp_path)
    folder = tmp_path / str(os.getpid())
    (folder / "fd").mkdir(parents=True)
    assert book.look_up(os.getpid()).name is None
    (folder / "fd" / "5").symlink_to("/dev/nvidia0")
    assert book.look_up(os.getpid()).name is not None
