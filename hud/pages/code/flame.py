"""The icicle of device time on *What changed*: module, function, line, kernel. Each part is as wide as the longer
of its two times, and coloured by the change. Nested lists, so that it needs no script and can be read aloud."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from django.utils.safestring import SafeString

from hud.judging.kernels.attribution import Change
from hud.judging.kernels.lines import UNKNOWN, lines_of
from hud.judging.kernels.table import short_name
from hud.tables.formatting import signed
from hud.tables.html import attributes, text

_LEAST = 0.006  # of the whole: narrower parts beside each other are one
_FULL = 0.2  # the change that has the full colour
_QUIET = 0.005  # changes below have none


@dataclass
class Part:
    """Times in µs of a step; `slot` is that of a kernel."""

    name: str = ""
    slot: str = ""
    base_us: float = 0.0
    head_us: float = 0.0
    width_us: float = 0.0
    parts: dict[str, "Part"] = field(default_factory=dict)

    def add(self, other: "Part") -> None:
        self.base_us += other.base_us
        self.head_us += other.head_us
        self.width_us += other.width_us

    def shown(self, least_us: float) -> Iterator["Part"]:
        """Yield the parts, the widest first, those that are too narrow as one."""
        wide = [part for part in self.parts.values() if part.width_us >= least_us]
        yield from sorted(wide, key=lambda part: (-part.width_us, part.name))
        if narrow := len(self.parts) - len(wide):
            rest = Part(f"{narrow} shorter")
            for part in self.parts.values():
                if part.width_us < least_us:
                    rest.add(part)
            yield rest


def tree_of(changes: Iterable[Change]) -> Part:
    """Return the whole; a kernel of several lines stands at each with an equal part of its times."""
    whole = Part()
    for change in changes:
        lines, times_us = lines_of(change) or (UNKNOWN,), (change.base_us or 0.0, change.head_us or 0.0)
        base_us, head_us = (time_us / len(lines) for time_us in times_us)
        kernel = Part(change.kernel.name, change.slot, base_us, head_us, max(base_us, head_us))
        for line in lines if kernel.width_us else ():
            place, _, function = line.partition(" ")
            file, _, number = place.rpartition(":")
            named = [file.rpartition("/")[2] or line, function, number and f"line {number}"]
            part = whole
            part.add(kernel)
            for name in (*filter(None, named), kernel.name):
                part = part.parts.setdefault(name, Part(name))
                part.add(kernel)
            part.slot = change.slot
    return whole


def icicle(changes: Iterable[Change], links: Mapping[str, str], *, one_point: bool) -> SafeString:
    """Return the icicle, nothing where no time or no line is known. `links` has addresses by slot."""
    whole = tree_of(changes)
    if not whole.width_us or whole.parts.keys() <= {UNKNOWN}:
        return SafeString("")
    whole.name = "all kernels"
    return SafeString(f'<ul class="flame">{_part(whole, whole, links, one_point=one_point)}</ul>')


def _part(part: Part, whole: Part, links: Mapping[str, str], *, one_point: bool) -> str:
    change_us = part.head_us - part.base_us
    much = change_us / part.width_us
    words = f"{part.head_us:,.1f} µs" if one_point else f"{part.head_us:,.1f} µs, {signed(change_us, 1)}"
    tone = "" if abs(much) < _QUIET else " slower" if much > 0 else " faster"
    about = attributes(
        css=f"part{tone}",
        title=f"{part.name}: {words}",
        style=f"--much:{min(1.0, abs(much) / _FULL):.2f}" if tone else None,
        href=links.get(part.slot),
    )
    tag = "a" if part.slot in links else "span"
    name = short_name(part.name) if part.slot else part.name
    label = f"<{tag}{about}>{text(name)} <small>{text(words)}</small></{tag}>"
    shown = list(part.shown(_LEAST * whole.width_us))
    inner = "".join(_part(each, whole, links, one_point=one_point) for each in shown)
    return f'<li style="flex-grow:{part.width_us:.3f}">{label}{f"<ul>{inner}</ul>" if inner else ""}</li>'
