// The charts of an experiment: a click or an arrow key chooses a run and shows what is known of it; dragging
// zooms. What is chosen stands in the URL. The drawings themselves are the server's.
"use strict";
(() => {
  const root = document.querySelector("[data-details]");
  const copyLink = document.querySelector("[data-copy-link]");
  const copy = async (text) => {
    await navigator.clipboard.writeText(text);
    document.getElementById("announcer").textContent = "Copied";
  };
  if (copyLink && navigator.clipboard) {
    copyLink.hidden = false;
    copyLink.addEventListener("click", () => copy(location.href));
  }
  const searchable = (box) => {
    box.hidden = false;
    box.addEventListener("input", () => {
      for (const field of box.parentElement.querySelectorAll(".field"))
        field.hidden = !field.textContent.toLowerCase().includes(box.value.toLowerCase());
    });
  };
  document.querySelectorAll("[data-option-search]").forEach(searchable);
  // a page without all options of a rerun has a link to the one with them: take them from there
  for (const link of document.querySelectorAll("a[data-options]"))
    link.addEventListener("click", async (event) => {
      event.preventDefault();
      const answer = await fetch(link.href, { redirect: "error" }).catch(() => null);
      const text = answer?.ok ? await answer.text() : "";
      const found = new DOMParser().parseFromString(text, "text/html").getElementById("more-options");
      if (!found) return location.assign(link.href);
      link.parentElement.replaceWith(found);
      found.querySelectorAll("[data-option-search]").forEach(searchable);
      found.querySelector("summary").focus();
    });
  for (const choice of document.querySelectorAll("select[data-warn]")) {
    const warn = () => {
      for (const line of document.querySelectorAll("[data-warn-for]")) line.hidden = line.dataset.warnFor !== choice.value;
    };
    choice.addEventListener("change", warn);
    warn();
  }
  const ended = document.querySelector("[data-poll]");
  if (ended) ended.addEventListener("hud:ended", () => location.assign(ended.dataset.then));
  if (!root) return;

  const said = JSON.parse(document.getElementById(root.dataset.details).textContent);
  const points = said.points.map(([run, x, time, commit, branch, host, changed, kernels, rerun]) => ({ run, x, time, commit, branch, host, changed, kernels, rerun }));
  const drawing = root.querySelector(".chart-row.tall .drawing") || root.querySelector(".drawing");
  if (!points.length || !drawing) return;
  let chosen = -1;
  let card = null;
  let line = null;

  const make = (name, text = "", more = {}) => {
    const made = document.createElement(name);
    made.textContent = text;
    Object.assign(made, more);
    return made;
  };
  const set = (name, value) => {
    const url = new URL(location);
    if (value === null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
    return url;
  };
  const place = () => {
    const box = drawing.getBoundingClientRect();
    const own = root.getBoundingClientRect();
    return { left: box.left - own.left, width: box.width, top: box.top - own.top, bottom: root.querySelector(".chart-row.foot").offsetTop };
  };
  const format = (value, row) => {
    if (value === null) return "no value";
    if (row.unit === "ratio") return format(value * 100, { digits: Math.max(row.digits - 2, 0), unit: "%" });
    if (row.unit === "B") return `${(value / 1e6).toFixed(1)} MB`;
    const digits = value && Math.abs(value) < 10 ** (2 - row.digits) ? Number(value.toPrecision(3)) : value.toFixed(row.digits);
    return `${digits} ${row.unit}`.trim();
  };

  const close = () => {
    card?.remove();
    line?.remove();
    card = line = null;
    chosen = -1;
    history.replaceState(null, "", set("point", null));
  };

  const links = (point, before) => {
    const side = (one) => `run:${one.run}/experiment:${said.experiment}`;
    const found = [];
    if (before) {
      const sides = new URLSearchParams({ stream: said.stream, base: side(before), head: side(point) });
      if (point.kernels && before.kernels) found.push(["What changed", `/code/?${sides}`, "w"]);
      found.push([`Run ${point.run}`, `/runs/${point.run}/`, ""], ["Compare", `/compare/?stream=${said.stream}&base=run:${before.run}&head=run:${point.run}`, "c"]);
    } else found.push([`Run ${point.run}`, `/runs/${point.run}/`, ""]);
    found.push(["Rerun", "#rerun", "r"], ["Link", set("point", point.run).href, "l"]);
    return found;
  };

  const show = (index) => {
    close();
    chosen = Math.min(Math.max(index, 0), points.length - 1);
    const point = points[chosen];
    const own = points.slice(0, chosen).filter((one) => !one.branch && !one.rerun);
    const before = own[own.length - 1];
    history.replaceState(null, "", set("point", point.run));
    card = make("div", "", { className: "point-card" });
    card.setAttribute("role", "dialog");
    card.setAttribute("aria-label", `Run ${point.run}`);
    const head = make("p");
    head.append(make("b", new Date(point.time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }), { title: `${point.time} UTC` }), " ");
    if (point.commit) head.append(make("code", point.commit.slice(0, 10), { title: point.commit }), " ");
    head.append(make("span", [point.host && `on ${point.host}`, point.branch && `branch ${point.branch}`, point.rerun && "rerun"].filter(Boolean).join(", "), { className: "dim" }));
    const table = make("table");
    const titles = table.createTHead().insertRow();
    for (const text of ["", "Value", "Level", "Result"]) titles.append(make("th", text, { scope: "col" }));
    const body = table.createTBody();
    for (const row of said.rows) {
      const found = row.values.find((one) => one[0] === chosen);
      if (!found) continue;
      const tr = body.insertRow();
      tr.append(make("th", row.title, { scope: "row", title: row.better }));
      const [, value, compilations, word, level, noise, change, least, most] = found;
      const reach = compilations > 1 ? ` (${compilations}: ${format(least, row)} to ${format(most, row)})` : "";
      tr.append(make("td", format(value, row) + reach, { className: "num", title: "of the compilations: how many, smallest to largest" }));
      const around = noise ? ` ± ${(100 * noise).toFixed(1)} %` : "";
      tr.append(make("td", level === null ? "" : format(level, row) + around, { className: "num" }));
      const moved = change === null ? "" : `${change >= 0 ? "+" : "−"}${Math.abs(100 * change).toFixed(1)} %`;
      tr.append(make("td", [said.words[word], moved].filter(Boolean).join(" "), { className: "num" }));
    }
    const changed = make("p", point.changed.length ? point.changed.join("; ") : "no difference in the environment", { className: "dim" });
    const ways = make("p", "", { className: "links" });
    for (const [text, address, key] of links(point, before)) {
      const link = make("a", text, { href: address });
      if (key) link.append(" ", make("kbd", key));
      if (key === "l" && navigator.clipboard)
        link.addEventListener("click", (event) => {
          event.preventDefault();
          copy(link.href);
        });
      if (key) link.dataset.key = key;
      ways.append(link);
    }
    const end = make("button", "×", { type: "button", className: "quiet close", onclick: close });
    end.setAttribute("aria-label", "Close");
    card.append(end, head, table, changed, ways);
    const where = place();
    line = make("div", "", { className: "chosen-line" });
    const x = where.left + (where.width * point.x) / 100;
    Object.assign(line.style, { left: `${x}px`, top: `${where.top}px`, height: `${where.bottom - where.top}px`, bottom: "auto" });
    root.append(line, card);
    const wide = card.offsetWidth;
    const left = x + 16 + wide < root.clientWidth ? x + 16 : x - wide - 16;
    Object.assign(card.style, { left: `${Math.max(left, 8)}px`, top: `${where.top + 60}px` });
    document.getElementById("announcer").textContent = `Run ${point.run}`;
  };

  const nearest = (clientX) => {
    const box = drawing.getBoundingClientRect();
    const share = (100 * (clientX - box.left)) / box.width;
    if (share < -2 || share > 102) return -1;
    return points.reduce((best, point, index) => (Math.abs(point.x - share) < Math.abs(points[best].x - share) ? index : best), 0);
  };

  let start = null;
  let zoom = null;
  root.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.target.closest(".drawing")) start = event.clientX;
  });
  root.addEventListener("pointermove", (event) => {
    if (start === null || Math.abs(event.clientX - start) < 12 || event.pointerType === "touch") return;
    const where = place();
    const left = root.getBoundingClientRect().left;
    if (!zoom) root.append((zoom = make("div", "", { className: "zoom-box" })));
    const [from, to] = [start, event.clientX].sort((a, b) => a - b);
    Object.assign(zoom.style, { left: `${from - left}px`, width: `${to - from}px`, top: `${where.top}px`, height: `${where.bottom - where.top}px` });
  });
  addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [from, to] = [start, event.clientX].sort((a, b) => a - b);
    start = null;
    if (zoom) {
      zoom.remove();
      zoom = null;
      const [first, last] = [nearest(Math.max(from, drawing.getBoundingClientRect().left)), nearest(Math.min(to, drawing.getBoundingClientRect().right))];
      if (first < 0 || last <= first) return;
      const url = set("from", points[first].time);
      url.searchParams.set("to", points[last].time);
      url.searchParams.delete("point");
      location.assign(url);
    } else {
      const index = nearest(event.clientX);
      if (index >= 0) show(index);
    }
  });
  const zoomIn = () => {
    const middle = chosen < 0 ? points.length - 1 : chosen;
    const half = Math.max(1, Math.floor(points.length / 4));
    const url = set("from", points[Math.max(middle - half, 0)].time);
    url.searchParams.set("to", points[Math.min(middle + half, points.length - 1)].time);
    location.assign(url);
  };
  const zoomButton = root.querySelector("[data-zoom]");
  if (zoomButton && points.length > 3) {
    zoomButton.hidden = false;
    zoomButton.addEventListener("click", zoomIn);
  }
  root.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea, summary") || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) show(chosen < 0 ? points.length - 1 : chosen + step);
    else if (event.key === "Escape" && card) close();
    else if (event.key === "+" && points.length > 3) zoomIn();
    else if (event.key === "-" && /[?&](from|to)=/.test(location.search)) root.querySelector("[data-zoom-out]")?.click();
    else {
      const link = card?.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
      if (!link) return;
      link.click();
    }
    event.preventDefault();
  });
  const asked = Number(new URL(location).searchParams.get("point"));
  const index = points.findIndex((point) => point.run === asked);
  if (asked && index >= 0) show(index);
})();
