# ruff: noqa: E501
"""Small logs made for the tests: each as its tool prints it, of devices that do not exist."""

__all__ = ["CSV", "QUERY", "XML", "DMON", "DMON_CSV", "PMON", "TABLE", "APPS", "PROMETHEUS", "GRAFANA", "ROCM"]

CSV = """\
timestamp, index, name, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], temperature.gpu
2026/03/01 10:00:00.000, 0, NVIDIA A100-SXM4-40GB, GPU-aaaa, 97 %, 38000 MiB, 40960 MiB, 390.10 W, 61
2026/03/01 10:00:00.004, 1, NVIDIA A100-SXM4-40GB, GPU-bbbb, 12 %, 37000 MiB, 40960 MiB, 120.50 W, 44
2026/03/01 10:00:01.000, 0, NVIDIA A100-SXM4-40GB, GPU-aaaa, 96 %, 38000 MiB, 40960 MiB, 391.00 W, 62
2026/03/01 10:00:01.004, 1, NVIDIA A100-SXM4-40GB, GPU-bbbb, [N/A], 37000 MiB, 40960 MiB, [Unknown Error], 44
"""

QUERY = """\

==============NVSMI LOG==============

Timestamp                                 : Sun Mar  1 10:00:00 2026
Driver Version                            : 470.82.01
CUDA Version                              : 11.4

Attached GPUs                             : 2
GPU 00000000:04:00.0
    Product Name                          : Tesla T4
    Product Brand                         : NVIDIA
    MIG Mode
        Current                           : N/A
        Pending                           : N/A
    GPU UUID                              : GPU-cccc
    Minor Number                          : 1
    PCI
        Device Id                         : 0x1EB810DE
        Bus Id                            : 00000000:04:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 3
                Current                   : 3
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : 3
        Tx Throughput                     : 1000 KB/s
        Rx Throughput                     : 2000 KB/s
    Fan Speed                             : N/A
    Performance State                     : P0
    Clocks Throttle Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Active
    FB Memory Usage
        Total                             : 15109 MiB
        Used                              : 11000 MiB
        Free                              : 4109 MiB
    BAR1 Memory Usage
        Total                             : 256 MiB
        Used                              : 5 MiB
        Free                              : 251 MiB
    Compute Mode                          : Exclusive_Process
    Utilization
        Gpu                               : 99 %
        Memory                            : 50 %
        Encoder                           : 0 %
        Decoder                           : 0 %
    Ecc Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 1
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 2
            DRAM Uncorrectable            : 0
    Retired Pages
        Single Bit ECC                    : 2
        Double Bit ECC                    : 1
        Pending Page Blacklist            : No
    Temperature
        GPU Current Temp                  : 84 C
        GPU Shutdown Temp                 : 96 C
        GPU Slowdown Temp                 : 93 C
        GPU Max Operating Temp            : 85 C
    Power Readings
        Power Management                  : Supported
        Power Draw                        : 69.50 W
        Power Limit                       : 70.00 W
        Enforced Power Limit              : 70.00 W
    Clocks
        Graphics                          : 900 MHz
        SM                                : 900 MHz
        Memory                            : 5000 MHz
    Max Clocks
        Graphics                          : 1590 MHz
        SM                                : 1590 MHz
        Memory                            : 5001 MHz
    Processes
        GPU instance ID                   : N/A
        Compute instance ID               : N/A
        Process ID                        : 4711
            Type                          : C
            Name                          : python train.py
            Used GPU Memory               : 10990 MiB
        GPU instance ID                   : N/A
        Compute instance ID               : N/A
        Process ID                        : 4712
            Type                          : G
            Name                          : Xorg
            Used GPU Memory               : 10 MiB

GPU 00000000:05:00.0
    Product Name                          : Tesla T4
    GPU UUID                              : GPU-dddd
    FB Memory Usage
        Total                             : 15109 MiB
        Used                              : 0 MiB
        Free                              : 15109 MiB
    Utilization
        Gpu                               : 0 %
    Processes                             : None

"""

XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v11.dtd">
<nvidia_smi_log>
  <timestamp>Sun Mar  1 10:00:00 2026</timestamp>
  <driver_version>470.82.01</driver_version>
  <cuda_version>11.4</cuda_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:41:00.0">
    <product_name>NVIDIA A30</product_name>
    <mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
    <mig_devices>
      <mig_device>
        <index>0</index><gpu_instance_id>3</gpu_instance_id><compute_instance_id>0</compute_instance_id>
        <device_attributes><shared><multiprocessor_count>14</multiprocessor_count></shared></device_attributes>
        <ecc_error_count><volatile_count><sram_uncorrectable>0</sram_uncorrectable></volatile_count></ecc_error_count>
        <fb_memory_usage><total>5952 MiB</total><used>1024 MiB</used><free>4928 MiB</free></fb_memory_usage>
      </mig_device>
    </mig_devices>
    <uuid>GPU-eeee</uuid>
    <pci><pci_device_id>20B710DE</pci_device_id>
      <pci_gpu_link_info><pcie_gen><max_link_gen>4</max_link_gen><current_link_gen>4</current_link_gen></pcie_gen>
      <link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
      </pci_gpu_link_info><tx_util>5 KB/s</tx_util></pci>
    <fb_memory_usage><total>24258 MiB</total><used>1100 MiB</used><free>23158 MiB</free></fb_memory_usage>
    <utilization><gpu_util>N/A</gpu_util><memory_util>N/A</memory_util></utilization>
    <clocks_throttle_reasons>
      <clocks_throttle_reason_gpu_idle>Not Active</clocks_throttle_reason_gpu_idle>
      <clocks_throttle_reason_sw_power_cap>Active</clocks_throttle_reason_sw_power_cap>
    </clocks_throttle_reasons>
    <power_readings><power_state>P0</power_state><power_draw>120.25 W</power_draw>
      <enforced_power_limit>165.00 W</enforced_power_limit></power_readings>
    <supported_clocks><supported_mem_clock><value>1215 MHz</value>
      <supported_graphics_clock>1440 MHz</supported_graphics_clock>
      <supported_graphics_clock>1425 MHz</supported_graphics_clock></supported_mem_clock></supported_clocks>
    <processes><process_info><gpu_instance_id>3</gpu_instance_id><compute_instance_id>0</compute_instance_id>
      <pid>99</pid><type>C</type><process_name>python</process_name><used_memory>1000 MiB</used_memory></process_info>
    </processes>
    <accounted_processes><accounted_process_info><pid>12</pid><gpu_util>50 %</gpu_util></accounted_process_info>
    </accounted_processes>
  </gpu>
</nvidia_smi_log>
"""

DMON = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk  pviol  tviol     fb   bar1 sbecc dbecc   pci  rxpci  txpci
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %    MHz    MHz      %   bool     MB     MB  errs  errs  errs   MB/s   MB/s
 20260301   10:00:00      0    250     70      -     99     40      0      0    877   1380     35      0  15000      4     0     0     0    120     15
 20260301   10:00:00      1     60     35      -      0      0      0      0    877   1380      0      0      3      4     -     -     0      0      0
 20260301   10:00:01      0    251     71      -     98     41      0      0    877   1372     40      0  15000      4     0     0     0    130     15
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk  pviol  tviol     fb   bar1 sbecc dbecc   pci  rxpci  txpci
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %    MHz    MHz      %   bool     MB     MB  errs  errs  errs   MB/s   MB/s
 20260301   10:00:01      1     60     35      -      0      0      0      0    877   1380      0      0      3      4     -     -     0      0      0
"""

DMON_CSV = """\
#gpu, pwr, gtemp, mtemp, sm, mem, enc, dec, mclk, pclk
#Idx, W, C, C, %, %, %, %, MHz, MHz
0, 43, 35, -, 10, 0, 0, 0, 2505, 1075
1, 42, 31, -, 20, 0, 0, 0, 2505, 1075
0, 44, 36, -, 30, 0, 0, 0, 2505, 1075
1, 45, 37, -, 40, 0, 0, 0, 2505, 1075
"""

PMON = """\
# gpu        pid  type    sm   mem   enc   dec    fb   command
# Idx          #   C/G     %     %     %     %    MB   name
    0       1234     C    45    12     -     -  7000   python3 -m x
    0       1300   C+G     5     1     -     -   100   Xorg
    1          -     -     -     -     -     -     -   -
    0       1234     C    55    13     -     -  7100   python3 -m x
    0       1300   C+G     4     1     -     -   100   Xorg
    1          -     -     -     -     -     -     -   -
"""

TABLE = """\
Sun Mar  1 10:00:00 2026
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 460.32.03    Driver Version: 460.32.03    CUDA Version: 11.2     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|                               |                      |               MIG M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:06:00.0 Off |                    2 |
| N/A   43C    P0   155W / 300W |  15010MiB / 16160MiB |     88%   E. Process |
|                               |                      |                  N/A |
+-------------------------------+----------------------+----------------------+
|   1  Tesla V100-SXM2...  On   | 00000000:07:00.0 Off |                    0 |
| N/A   41C    P0    ERR! / 300W|      0MiB / 16160MiB |      0%   Default    |
|                               |                      |                  N/A |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|        ID   ID                                                   Usage      |
|=============================================================================|
|    0   N/A  N/A      5555      C   python train.py                 15007MiB |
+-----------------------------------------------------------------------------+
"""

APPS = """\
timestamp, gpu_name, gpu_uuid, pid, process_name, used_gpu_memory [MiB]
2026/03/01 10:00:00.100, NVIDIA L4, GPU-ffff, 10, python a, b.py, 500 MiB
2026/03/01 10:00:00.100, NVIDIA L4, GPU-ffff, 11, python, [N/A]
"""

PROMETHEUS = """\
{"status":"success","data":{"resultType":"matrix","result":[
{"metric":{"__name__":"DCGM_FI_DEV_GPU_UTIL","gpu":"0","UUID":"GPU-1","modelName":"NVIDIA H100 80GB HBM3","Hostname":"a",
"pod":"train-0"},"values":[[1772359200,"98"],[1772359230,"97"]]},
{"metric":{"__name__":"DCGM_FI_PROF_SM_ACTIVE","gpu":"0","UUID":"GPU-1","modelName":"NVIDIA H100 80GB HBM3","Hostname":"a"},
"values":[[1772359200,"0.125"],[1772359230,"0.25"]]},
{"metric":{"__name__":"DCGM_FI_DEV_FB_USED","gpu":"0","UUID":"GPU-2","modelName":"NVIDIA H100 80GB HBM3","Hostname":"b"},
"values":[[1772359200,"1000"]]}]}}
"""

GRAFANA = """\
"Time","DCGM_FI_DEV_POWER_USAGE{gpu=""0"", UUID=""GPU-1""}","DCGM_FI_DEV_POWER_USAGE{gpu=""1"", UUID=""GPU-2""}"
2026-03-01 10:00:00,300.5,99
2026-03-01 10:00:30,310,
"""

ROCM = """\
{"card0": {"GPU use (%)": "87", "Average Graphics Package Power (W)": "250.0", "VRAM Total Memory (B)": "68702699520",
"VRAM Total Used Memory (B)": "1048576", "Card series": "AMD Instinct MI210", "sclk clock speed:": "(1700Mhz)"},
"card1": {"GPU use (%)": "0"}}
"""
