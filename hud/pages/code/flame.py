"""The icicle of device time on *What changed*: module, function, line, kernel. Each part is as wide as the
longer of its two times, and coloured by the change. Nested lists need no script and can be read aloud."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from django.utils.safestring import SafeString

from hud.judging.kernels.attribution import Change
from hud.judging.kernels.lines import UNKNOWN, lines_of
from hud.judging.kernels.table import short_name
from hud.tables.formatting import signed
from hud.tables.html import element, join, link

_LEAST = 0.006  # of the whole: narrower parts beside each other are one
_FULL = 0.2  # the change that has the full colour
_QUIET = 0.005  # changes below have none


@dataclass
class FlamePart:
    """Times in µs of a step; `slot` is that of a kernel."""

    name: str = ""
    slot: str = ""
    base_us: float = 0.0
    head_us: float = 0.0
    width_us: float = 0.0
    parts: dict[str, "FlamePart"] = field(default_factory=dict)

    def add(self, *others: "FlamePart") -> None:
        for name in ("base_us", "head_us", "width_us"):
            setattr(self, name, getattr(self, name) + sum(getattr(part, name) for part in others))


def tree_of(changes: Iterable[Change]) -> FlamePart:
    """Return the whole; a kernel of several lines stands at each with an equal part of its times."""
    whole = FlamePart("all kernels")
    for change in changes:
        lines, times_us = lines_of(change) or (UNKNOWN,), (change.base_us or 0.0, change.head_us or 0.0)
        base_us, head_us = (time_us / len(lines) for time_us in times_us)
        kernel = FlamePart(change.kernel.name, change.slot, base_us, head_us, max(base_us, head_us))
        for line in lines if kernel.width_us else ():
            place, _, function = line.partition(" ")
            file, _, number = place.partition(":")
            part = whole
            part.add(kernel)
            names = file.rpartition("/")[2] or line, function, number and f":{number}"
            for name in filter(None, names):
                part = part.parts.setdefault(name, FlamePart(name))
                part.add(kernel)
            part.parts.setdefault(change.slot, FlamePart(kernel.name, change.slot)).add(kernel)
    return whole


def icicle(changes: Iterable[Change], links: Mapping[str, str], *, one_point: bool) -> SafeString:
    """Return the icicle, nothing where no time or no line is known. `links` has addresses by slot."""
    whole = tree_of(changes)
    if not whole.width_us or whole.parts.keys() <= {UNKNOWN}:
        return SafeString("")
    least_us = _LEAST * whole.width_us

    def drawn(part: FlamePart) -> SafeString:
        change_us = part.head_us - part.base_us
        much = change_us / part.width_us
        words = f"{part.head_us:,.1f} µs" + ("" if one_point else f", {signed(change_us, 1)}")
        name = short_name(part.name) if part.slot else part.name
        label, title = join(name, element("small", words)), f"{part.name}: {words}"
        css = "part" if abs(much) < _QUIET else "part slower" if much > 0 else "part faster"
        style = f"--much:{min(1.0, abs(much) / _FULL):.2f}"
        if part.slot in links:
            label = link(links[part.slot], label, css=css, title=title, style=style)
        else:
            label = element("span", label, css=css, title=title, style=style)
        wide = [one for one in part.parts.values() if one.width_us >= least_us]
        wide.sort(key=lambda one: (-one.width_us, one.name))
        narrow = [one for one in part.parts.values() if one.width_us < least_us]
        if narrow:
            wide.append(FlamePart(f"{len(narrow)} shorter"))
            wide[-1].add(*narrow)
        inner = element("ul", join(*map(drawn, wide), by="")) if wide else ""
        return element("li", join(label, inner, by=""), style=f"flex-grow:{part.width_us:.3f}")

    return element("ul", drawn(whole), css="flame")
