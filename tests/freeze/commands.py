"""Record the plans, measurements and resumed outputs of `python -m runner`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.freeze.dashboard import clean_environment, run_in
from tests.freeze.masks import Masks, Recording, without_numbers

_NVIDIA_SMI = """#!/bin/sh
# Two GPUs for plans: each asked field by its name, the same for both.
for index in 0 1; do
  line=
  for field in $(echo "$1" | sed 's/--query-gpu=//; s/,/ /g'); do
    case $field in
      index) value=$index ;; name) value="NVIDIA H200" ;; uuid) value=GPU-0000000$index ;;
      memory.total) value=143771 ;; driver_version) value=580.65 ;; *) value=1 ;;
    esac
    line="$line${line:+, }$value"
  done
  echo "$line"
done
"""
# Formats, suite and options; small, so that all of them take some minutes on two processors
MEASURED = """
ours,v3       ceilings --case copy
ours          micro --case layer_norm[D=64] --dtype bfloat16 --repeat 20
upstream      micro --case gemv[repeat=20,D=256+512+1024+2048] --dtype int8
ours,upstream operators --case aten.mm.default[max_samples=1] --dtype float32 --repeat 5
ours,upstream xla --case dummy --mode inference --backend eager --repeat 2
v3            xla --case dummy --mode training --backend inductor --repeat 2 --verify
ours          gpt_fast --case toy-llama[samples=2,budget_s=0,repeat=10,caches=kept] --dtype int8
upstream      gpt_fast --case toy-llama[samples=2,budget_s=0,repeat=10] --dtype int8
ours          huggingface --case DistillGPT2[size=tiny] --mode inference --dtype float32 --repeat 10
ours          timm --case mobilevit_s[size=tiny] --mode training --dtype float32 --backend eager --repeat 5
upstream      torchbench --case squeezenet1_1 --dtype float32 --backend eager --repeat 5 --batch-size 2
ours,upstream cache --case squeezenet1_1 --mode inference --dtype bfloat16 --repeat 1
ours,v3       timm --case mobilevit_s[size=tiny] --mode inference --dtype float32 --timeout 1
ours,v3       torchbench --case lennard_jones --mode inference --dtype float32
"""
PLANS = (
    "--mode training inference --dtype float32 --backend inductor eager --dynamic",
    "--filter ^[a-d] --partition 2/3",
    "--repeats 2 --repeat 30 --batch-size 4",
    "--verify --format upstream --output x",
    "--opt D=256 size=tiny",
    "--case nothing",
)


def plans(checkout: Path, scratch: Path, recording: Recording) -> None:
    """Record the cases of every suite, and its tasks as `--dry-run` prints them."""
    environment = _environment(scratch) | {"PATH": f"{_fake_gpus(scratch)}:{clean_environment()['PATH']}"}
    masks = Masks(texts={str(scratch): "<scratch>", str(checkout): "<checkout>"})

    def record(name: str, *words: str) -> str:
        done = run_in(checkout, [".venv/bin/python", "-m", "runner", *words], environment)
        recording.write(
            f"plans/{name}.txt", masks.text(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
        )
        return done.stdout

    record("list", "list")
    for command in ("run", "list", "upload", "attach", "doctor"):
        record(f"help-{command}", command, "--help")
    for suite in suites(checkout):
        record(f"{suite}/list", "list", suite)
        record(f"{suite}/options", "list", suite, "--options")
        for device in ("cpu", "cuda"):
            words = ("run", suite, "--device", device, "--dry-run")
            record(f"{suite}/{device}", *words)
            for number, options in enumerate(PLANS):
                record(f"{suite}/{device}-{number}", *words, *options.split())


def suites(checkout: Path) -> list[str]:
    """Names of the suites, as a line of `list` that stands at the margin begins with."""
    said = run_in(checkout, [".venv/bin/python", "-m", "runner", "list"], clean_environment()).stdout
    return [line.partition(":")[0] for line in said.splitlines() if line[:1].isalpha() and ":" in line]


def _fake_gpus(scratch: Path) -> Path:
    program = scratch / "bin" / "nvidia-smi"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(_NVIDIA_SMI)
    program.chmod(0o755)
    return program.parent


def _environment(scratch: Path) -> dict[str, str]:
    folders = {
        "XDG_CACHE_HOME": scratch / "cache",
        "RUNNER_LOCKS": scratch / "locks",
        "TMPDIR": scratch / "tmp",
    }
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return (
        clean_environment()
        | {name: str(folder) for name, folder in folders.items()}
        | {"OMP_NUM_THREADS": "2"}
    )


def measured(checkout: Path, scratch: Path, recording: Recording, old: Recording) -> None:
    """Record what tiny runs on the CPU leave in each format, without its numbers, and that `--resume` goes on
    with the files that `old` kept."""
    environment = _environment(scratch)
    masks = Masks(texts={str(scratch): "<scratch>", str(checkout): "<checkout>"})
    kept = recording.folder / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    for number, line in enumerate(MEASURED.strip().splitlines()):
        formats, *words = line.split()
        name = f"{number}-{words[0]}"
        command = [".venv/bin/python", "-m", "runner", "run", *words, "--device", "cpu", "--output"]
        for file_format in formats.split(","):
            output = scratch / f"{name}-{file_format}"
            done = run_in(checkout, [*command, str(output), "--format", file_format], environment)
            lines = [f"exit {done.returncode}"]
            for path in sorted(scratch.glob(f"{output.name}*/**/*")) + sorted(
                scratch.glob(f"{output.name}*")
            ):
                if path.is_file():
                    lines += [f"file {path.relative_to(scratch)}", *_shape(path.read_text(), masks)]
            recording.write(f"measured/{name}.{file_format}.txt", "\n".join(lines))
            if file_format == "ours" and output.exists():
                shutil.copy(output, kept / name)
                shutil.copy(old.folder / "kept" / name, output)
                before = output.read_text()
                done = run_in(checkout, [*command, str(output), "--resume"], environment)
                after = output.read_text()
                added = len(after.splitlines()) - len(before.splitlines())
                lines = [
                    f"exit {done.returncode}",
                    f"goes on {after.startswith(before)}",
                    f"added {added} lines",
                ]
                recording.write(f"measured/{name}.resumed.txt", "\n".join(lines))


def _shape(text: str, masks: Masks) -> list[str]:
    """Lines that say everything about results but their numbers."""
    lines = []
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            found = without_numbers(masks.text(line))
        parts = found.pop("records", []) if isinstance(found, dict) else []
        lines += [_line(_without_values(masks.value(item))) for item in (found, *parts)]
    return lines


def _line(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, sort_keys=True, ensure_ascii=False)


def _without_values(item: Any, key: str = "") -> Any:
    """Identities keep their numbers; warnings about what else ran at the time are left out."""
    if key in {"knobs", "task"}:
        return item
    if isinstance(item, dict):
        left_out = {"warning", "warnings", "reason"}
        return {name: _without_values(value, name) for name, value in item.items() if name not in left_out}
    if isinstance(item, list):
        kept = [_without_values(value, key) for value in item]
        return ["#"] if kept and all(value == "#" for value in kept) else kept
    if key == "benchmark_values" and isinstance(item, str):
        return without_numbers(item)
    return "#" if isinstance(item, int | float) and not isinstance(item, bool) else item
