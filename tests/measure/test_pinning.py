"""Pinned runs: the configuration of each kernel is forced, whatever the autotuner would take."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.measure.kernels import pinning
from runner.schema.compilations import digest, pinned, pinned_from_json
from runner.schema.suite import BadRequest

A, B, C = ("0123456789abcdef", "1" * 16, "2" * 16)
CODE = Path(__file__).parents[2] / "hud" / "samples" / "runner-h200-kernels" / "kernel_code.json.gz"


@dataclass
class Config:
    """Like Triton's."""

    kwargs: dict[str, int]
    num_warps: int = 4
    num_stages: int = 1
    found_by_coordesc: bool = field(default=False, compare=False, repr=False)


@dataclass
class Autotuner:
    """The part of CachingAutotuner that `tuning` uses; its first call takes the first candidate."""

    slot: str
    candidates: list[Config]
    launchers: list[Any] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)
    compiled: list[Config] = field(default_factory=list)
    source: str = ""
    save_cache_hook: Any = None
    autotune_cache_info: Any = None
    inductor_meta: dict[str, Any] = field(default_factory=dict)

    def launcher(self, config: Config) -> Any:
        """Its hash is of source and configuration, like Triton's."""
        return SimpleNamespace(config=config, cache_hash=f"{self.source} {config}")

    @property
    def fn(self) -> Any:
        return SimpleNamespace(__name__=f"triton_{self.slot[:1]}")

    def precompile(self) -> None:
        self.launchers = [self.launcher(config) for config in self.candidates]

    def _precompile_config(self, config: Config) -> Any:
        if config.num_warps > 32:
            raise RuntimeError("out of resources")
        self.compiled.append(config)
        return SimpleNamespace(make_launcher=lambda: self.launcher(config))

    def run(self, *_args: Any, stream: int) -> Config:
        if not self.launchers:
            self.precompile()
        self.launchers = self.launchers[:1]
        config: Config = self.launchers[0].config
        return config


@pytest.fixture
def state() -> Iterator[None]:
    pinning.forget_pinned()
    yield
    pinning.forget_pinned()


def test_each_kernel_takes_its_stored_configuration(monkeypatch: pytest.MonkeyPatch, state: None) -> None:
    monkeypatch.setattr(Autotuner, "run", Autotuner.run)  # put back after the test
    choices = {A: "XBLOCK=8 num_warps=4", B: "XBLOCK=64 num_warps=8 num_stages=3", C: "YBLOCK=1 num_warps=2"}
    pinning.pin(Autotuner, pinning.Given(choices), lambda autotuner: autotuner.slot)
    assert pinning.pinned_facts() == {}
    candidates = [Config({"XBLOCK": 4}), Config({"XBLOCK": 8})]
    first, compiled, other, unknown = (Autotuner(slot, candidates) for slot in (A, B, C, "3" * 16))
    for _call in range(2):
        assert first.run(stream=0) is candidates[1]
        assert compiled.run(stream=0) == Config({"XBLOCK": 64}, 8, 3)
        assert other.run(stream=0) is unknown.run(stream=0) is candidates[0]
    assert len(compiled.compiled) == 1
    assert not first.compiled
    facts = pinning.pinned_facts()["pinned"]
    assert (facts["forced"], facts["without_choice"]) == (2, ["triton_3"])
    assert facts["failed"][0].startswith("triton_2: ValueError")
    assert facts["slots"] == [C, "3" * 16] == list(pinning.unpinned())
    assert "1 kernels have no stored choice (triton_3)" in pinning.pinned_warning()
    late = Autotuner(A, candidates)
    late.precompile()  # as by inductor's compile workers
    assert late.run(stream=0) is candidates[1]


def test_a_proven_choice_is_taken_for_the_source_it_was_proven_with(
    monkeypatch: pytest.MonkeyPatch, state: None
) -> None:
    monkeypatch.setattr(Autotuner, "run", Autotuner.run)
    monkeypatch.setattr(pinning, "_arch", lambda: "h200")
    monkeypatch.setattr(pinning, "_triton", lambda: "3.6.0")
    candidates = [Config({"XBLOCK": 4}), Config({"XBLOCK": 8})]
    proven = Autotuner(A, candidates).launcher(candidates[1]).cache_hash
    value = {"choices": dict.fromkeys((A, B), "XBLOCK=8 num_warps=4"), "arch": "h200", "triton": "3.6.0"}
    value["binaries"] = dict.fromkeys((A, B), digest(proven))
    slot = lambda autotuner: autotuner.slot  # noqa: E731

    def took(given: pinning.Given, *autotuners: Autotuner) -> list[Config]:
        pinning.forget_pinned()
        with monkeypatch.context() as patch:
            patch.setattr(Autotuner, "run", Autotuner.run)
            pinning.pin(Autotuner, given, slot)
            return [one.run(stream=0) for one in autotuners]

    def kernels() -> tuple[Autotuner, Autotuner]:
        return Autotuner(A, candidates), Autotuner(B, candidates, source="changed")

    given = pinning.Given.from_json(value)
    assert took(given, *kernels()) == [candidates[1], candidates[0]]
    assert (pinning.forced(), pinning.unpinned()) == (1, (B,))
    assert "source" in pinning.pinned_facts()["pinned"]["failed"][0]
    for name in ("arch", "triton"):
        assert took(pinning.Given.from_json({**value, name: "other"}), *kernels()) == [candidates[0]] * 2
        assert (pinning.forced(), len(pinning.unpinned())) == (0, 2)
        assert all(f"of {name} other" in text for text in pinning.pinned_facts()["pinned"]["failed"])
    looking = pinning.Given.from_json({**value, "only_looks": True})
    assert took(looking, *kernels()) == [candidates[0]] * 2
    assert pinning.unpinned() == (B,)
    without_file = kernels()[0]
    without_file.autotune_cache_info = {"autotune_cache_state": "miss"}
    assert took(looking, without_file) == [candidates[0]]
    assert "read no file" in pinning.pinned_facts()["pinned"]["failed"][0]
    for is_final in (True, False):  # the mark is lost between a compile worker and its process
        config = Config({"XBLOCK": 8}, found_by_coordesc=is_final)
        read = Autotuner(A, [config], inductor_meta={"coordinate_descent_tuning": True})
        read.autotune_cache_info = {"autotune_cache_state": "hit"}
        proven = {A: digest(read.launcher(config).cache_hash)}
        looking = pinning.Given.from_json({**value, "only_looks": True, "binaries": proven})
        assert took(looking, read) == [config]
        assert pinning.unpinned() == ()
        assert bool(pinning.pinned_facts()) == (not is_final)


@pytest.mark.parametrize("name", sorted(json.loads(gzip.decompress(CODE.read_bytes())))[:3])
def test_inductor_reads_the_file_of_a_forced_choice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: None
) -> None:
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    source = json.loads(gzip.decompress(CODE.read_bytes()))[name]

    def cache_of(folder: str, code: str) -> Any:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / folder))
        _key, path = PyCodeCache.write(code)
        return AutotuneCache.create({"autotune_local_cache": True}, path, "configs")

    candidates = [Config({"XBLOCK": 4}), Config({"XBLOCK": 8})]
    kernel = Autotuner(A, candidates, save_cache_hook=cache_of("here", source).save)
    given = pinning.Given({A: "XBLOCK=8 num_warps=4"}, files=str(tmp_path / "files"))
    assert pinning._force(kernel, A, given)
    (file,) = (tmp_path / "files").glob("*/*.best_config")
    read = {}
    for code in (source, f"{source}# changed"):
        cache = cache_of("there", code)
        target = tmp_path / "there" / file.parent.name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
        read[code] = cache.read_best({}, candidates)
    assert [*read.values()] == [candidates[1], None]


def test_what_can_be_forced_is_names_and_integers() -> None:
    kernels = [(A, "XBLOCK=1 num_warps=4"), (A, "XBLOCK=2 num_warps=4"), (B, ""), (C, "ALLOW_TF32=True")]
    assert pinned(kernels) == {A: "XBLOCK=1 num_warps=4"}
    assert pinned_from_json({A: "XBLOCK=1"}) == {A: "XBLOCK=1"}
    wrong: Any
    for wrong in ([], {A: 1}, {A: "XBLOCK=1;"}, {A: "__import__('os')=1"}, {"x": "XBLOCK=1"}, {A: "X=1\n"}):
        with pytest.raises(BadRequest):
            pinned_from_json(wrong)
