"""Facts about the environment of a measurement.

`python -m runner.measure.state.environment DEVICE` prints them as JSON, with the suites' packages that can be
imported (`modules`) and the options of inductor that can be set (`inductor_options`).
"""

import dataclasses
import json
import sys

import torch

from runner.measure.compiler.inductor_options import settable
from runner.measure.forked import ASK_NVML
from runner.measure.state.device import Device, prepare
from runner.schema.records import Environment
from runner.system import machine
from runner.system.environment import modules, of_machine


def environment(device: Device) -> Environment:
    """Return the facts about this process, its torch and its device."""
    gpu = next((gpu for gpu in machine.gpus() if gpu.uuid == device.key), None)
    on_gpu = device.type == "cuda"
    return dataclasses.replace(
        of_machine(),
        torch=torch.__version__,
        torch_git=torch.version.git_version or "",
        cuda=(torch.version.cuda or "") if on_gpu else "",
        driver=gpu.driver if gpu else "",
        gpu=device.name if on_gpu else "",
        gpu_uuid=device.key if on_gpu else "",
        gpu_memory_bytes=torch.cuda.get_device_properties(0).total_memory if on_gpu else 0,
        variables={name: value for name, value in machine.changing_variables().items() if name != ASK_NVML},
    )


if __name__ == "__main__":
    found = dataclasses.asdict(environment(prepare(sys.argv[1])))
    sys.stdout.write(json.dumps({**found, "modules": modules(), "inductor_options": settable()}) + "\n")
