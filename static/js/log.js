// The log of a task: lines that come are fetched by byte offset and numbered; the end is followed until the
// reader scrolls up or presses the button. When the run goes on to its next task the log goes with it, unless
// a task was chosen. #L120 marks a line; one that is not on the page is asked from the server.
"use strict";
(() => {
  const box = document.getElementById("log");
  if (!box) return;
  const button = document.querySelector("[data-log-follow]");
  const toError = document.querySelector("[data-log-error]");
  const state = document.getElementById("log-state");
  const pinned = "pinned" in box.dataset;
  const codes = /\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b\x0c\x0e-\x1f]/g;
  const isError = /^(?:\[rank\d+\]: ?)?(?:[\w.]+(?:Error|Exception|Failed|Failure)\b(?:: .*)?$|Fatal Python error|Segmentation fault|Killed|Aborted|.*\bCUDA error\b|ERROR\b|FAILED\b)/;
  const keep = 1000; // lines on the page; the rest is in the whole log
  let next = Number(box.dataset.next) || 0;
  let number = Number(box.dataset.line) || 0;
  let task = box.dataset.task;
  let decoder = new TextDecoder();
  let open = ""; // the beginning of a line whose end has not come
  let openLine = null;
  let follow = true;
  let unseen = 0;
  let ended = !("live" in box.dataset);

  const toEnd = () => (box.scrollTop = box.scrollHeight);
  const atEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < 24;
  const setFollow = (value) => {
    follow = value;
    if (follow) unseen = 0;
    button.textContent = follow ? "Pause" : "Jump to the end";
    button.setAttribute("aria-pressed", String(follow));
    state.textContent = ended ? "" : follow ? "following" : unseen ? `paused, ${unseen} new lines` : "paused";
    if (follow) toEnd();
  };

  const row = (text) => {
    const line = document.createElement("span");
    line.className = isError.test(text) ? "ln err" : "ln";
    line.id = `L${number}`;
    const link = document.createElement("a");
    link.href = `${box.dataset.page}?task=${task}&line=${number}#L${number}`;
    link.tabIndex = -1;
    link.textContent = number;
    line.append(link, `${text}\n`);
    return line;
  };

  const add = (text) => {
    openLine?.remove();
    if (openLine) number -= 1;
    const clean = (open + text.replace(/\r\n/g, "\n")).split("\n");
    open = clean.pop();
    const fresh = document.createDocumentFragment();
    const put = (line) => {
      number += 1;
      const last = row(line.slice(line.lastIndexOf("\r") + 1).replace(codes, ""));
      fresh.append(last);
      return last;
    };
    for (const line of clean) put(line);
    openLine = open === "" ? null : put(open);
    unseen += follow ? 0 : clean.length;
    box.append(fresh);
    while (box.childElementCount > keep) box.firstElementChild.remove();
    toError.hidden = !box.querySelector(".err");
    setFollow(follow);
  };

  const goOn = (position) => {
    if (task !== "") {
      for (const line of box.querySelectorAll("[id]")) line.removeAttribute("id");
      const rule = document.createElement("span");
      rule.className = "ln task";
      rule.textContent = `task ${position}\n`;
      box.append(rule);
    }
    task = position;
    next = number = 0;
    open = "";
    openLine = null;
    decoder = new TextDecoder();
    const name = document.getElementById("log-name");
    if (name) name.textContent = `task ${position}`;
    const raw = document.getElementById("log-raw");
    if (raw) raw.href = `${box.dataset.url}?task=${position}&whole=1`;
  };

  const end = () => {
    ended = true;
    button.hidden = true;
    state.textContent = "";
  };

  const round = async () => {
    let wait = 1500;
    try {
      const current = document.querySelector("[data-current-task]")?.dataset.currentTask ?? task;
      if (task !== "" && !document.hidden) {
        const response = await fetch(`${box.dataset.url}?task=${task}&start=${next}`, { cache: "no-store" });
        if (!response.ok) throw new Error(response.status);
        const bytes = await response.arrayBuffer();
        next = Number(response.headers.get("X-Next-Offset"));
        if (bytes.byteLength) add(decoder.decode(bytes, { stream: true }));
        const more = response.headers.get("X-More") === "1";
        if (bytes.byteLength && more) wait = 300;
        else if (!more && !pinned && current !== "" && current !== task) goOn(current);
        else if (!more && ended) return end();
      } else if (current !== "" && task === "") goOn(current);
      else if (ended) return end();
    } catch {
      wait = 10_000;
    }
    setTimeout(round, wait);
  };

  const mark = () => {
    const wanted = /^#L(\d+)$/.exec(location.hash);
    if (!wanted) return;
    for (const line of box.querySelectorAll(".here")) line.classList.remove("here");
    const line = document.getElementById(`L${wanted[1]}`);
    const query = new URLSearchParams(location.search);
    if (line) {
      line.classList.add("here");
      line.scrollIntoView({ block: "center" });
      setFollow(false);
    } else if (query.get("line") !== wanted[1] && task !== "") {
      query.set("task", task);
      query.set("line", wanted[1]);
      location.replace(`${location.pathname}?${query}#L${wanted[1]}`);
    }
  };

  toError.hidden = !box.querySelector(".err");
  toError.addEventListener("click", () => {
    const errors = [...box.querySelectorAll(".err")];
    const middle = box.getBoundingClientRect().top + box.clientHeight / 2;
    const below = errors.find((line) => line.getBoundingClientRect().top > middle + 30) ?? errors[0];
    setFollow(false);
    for (const line of box.querySelectorAll(".here")) line.classList.remove("here");
    below.classList.add("here");
    below.scrollIntoView({ block: "center" });
  });
  addEventListener("hashchange", mark);

  const firstError = ended && box.querySelector(".err");
  if (firstError) box.scrollTop = firstError.offsetTop - box.offsetTop - box.clientHeight / 3;
  else toEnd();
  if (!ended) {
    button.hidden = false;
    setFollow(true);
    button.addEventListener("click", () => setFollow(!follow));
    box.addEventListener("scroll", () => {
      if (atEnd() !== follow) setFollow(atEnd());
    });
    document.addEventListener("hud:ended", () => (ended = true));
    round();
  }
  mark();
})();
