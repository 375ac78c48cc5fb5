"""From which figure on a reading of a device counts as busy, idle, held, …; each with its reason."""

from __future__ import annotations

__all__: list[str] = []

BUSY_PERCENT = 90.0
"""Tools and dashboards colour from here on as fully used."""
IDLE_PERCENT = 5.0
"""A display or a monitor alone makes up to this of an idle card; training does not run that low but in pauses."""
EMPTY_BYTES = 64 * 2**20
"""A context alone takes hundreds of MiB, a driver without one up to some tens: below, nothing is on the device."""
HELD_BYTES = 4 * 2**30
"""Where the size of the memory is not known: a desktop holds less, a training process more."""
HELD_SHARE = 0.5
"""From half of the memory on, a device is of little use to others."""
WORKING_POWER_SHARE = 0.25
"""Of the power limit. Idle devices with a context draw 10 to 20 % (an H100 with MIG on: 98 of 700 W), busy ones from
30 % on, also where their memory is the limit."""
LOAD_PERCENT = 50.0
"""Links train down on idle devices to save power: only under load do they show what they can."""
NEAR_POWER_LIMIT = 0.97
"""Drivers keep a device within some percent of its limit."""
FULL_CORE_PERCENT = 95.0
"""One thread of Python fills its core to this while other cores wait for it."""
FREE_CPU_PERCENT = 60.0
"""All cores together: above, the machine is short of CPU and not of parallelism."""

HEALTH = (
    "ecc_corrected",
    "ecc_uncorrected",
    "ecc_corrected_lifetime",
    "ecc_uncorrected_lifetime",
    "rows_remapped_corrected",
    "rows_remapped_uncorrected",
    "row_remap_pending",
    "row_remap_failed",
    "pages_retired",
    "page_retirement_pending",
    "reset_needed",
    "xid",
    "xid_events",
    "pcie_replays",
    "nvlink_errors",
)
"""Figures of `Reading` that tell of trouble."""
TROUBLE = frozenset({"hardware_slowdown", "hardware_thermal", "thermal", "power_brake"})
"""Throttle reasons that an idle device has no cause for."""
COUNTERS = {
    # Reason → the driver's counter of its time.
    "power_cap": "throttled_power_s",
    "thermal": "throttled_thermal_s",
    "hardware_thermal": "throttled_hardware_thermal_s",
    "power_brake": "throttled_power_brake_s",
    "sync_boost": "throttled_sync_boost_s",
}
