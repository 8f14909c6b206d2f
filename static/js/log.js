// The log of a running task: fetched by byte offset, followed to its end until the reader scrolls up or
// presses the button. When the run goes on to its next task the log goes with it, unless a task was chosen.
"use strict";
(() => {
  const box = document.getElementById("log");
  if (!box) return;
  const button = document.querySelector("[data-log-follow]");
  const pinned = "pinned" in box.dataset;
  const codes = /\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b\x0c\x0e-\x1f]/g;
  const keep = 1_000_000; // characters on the page; the rest is in the raw log
  let next = Number(box.dataset.next) || 0;
  let task = box.dataset.task;
  let decoder = new TextDecoder();
  let follow = true;
  let ended = !("live" in box.dataset);

  const toEnd = () => (box.scrollTop = box.scrollHeight);
  const atEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < 24;
  const setFollow = (value) => {
    follow = value;
    button.textContent = follow ? "Following" : "Follow the end";
    button.setAttribute("aria-pressed", String(follow));
    if (follow) toEnd();
  };

  const add = (text) => {
    box.append(text.replace(/\r\n/g, "\n").replace(codes, ""));
    while (box.textContent.length > keep && box.firstChild !== box.lastChild) box.firstChild.remove();
    if (follow) toEnd();
  };

  const goOn = (position) => {
    if (task !== "") add(`\n── task ${position} ──\n`);
    task = position;
    next = 0;
    decoder = new TextDecoder();
    const name = document.getElementById("log-name");
    if (name) name.textContent = `task ${position}`;
    const raw = document.getElementById("log-raw");
    if (raw) raw.href = `${box.dataset.url}?task=${position}`;
  };

  const end = () => (button.hidden = true);

  const round = async () => {
    let wait = 1500;
    try {
      if (task !== "" && !document.hidden) {
        const response = await fetch(`${box.dataset.url}?task=${task}&start=${next}`);
        if (!response.ok) throw new Error(response.status);
        const bytes = await response.arrayBuffer();
        next = Number(response.headers.get("X-Log-Next"));
        if (bytes.byteLength) add(decoder.decode(bytes, { stream: true }));
        if (bytes.byteLength && response.headers.get("X-Log-More") === "1") wait = 300;
        const current = document.querySelector("[data-current-task]")?.dataset.currentTask ?? task;
        const more = response.headers.get("X-Log-More") === "1";
        if (!more && !pinned && current !== "" && current !== task) goOn(current);
        else if (!more && ended) return end();
      } else {
        const current = document.querySelector("[data-current-task]")?.dataset.currentTask;
        if (current) goOn(current);
        else if (ended) return end();
      }
    } catch {
      wait = 10_000;
    }
    setTimeout(round, wait);
  };

  toEnd();
  if (ended) return;
  button.hidden = false;
  button.addEventListener("click", () => setFollow(!follow));
  box.addEventListener("scroll", () => {
    if (atEnd() !== follow) setFollow(atEnd());
  });
  document.addEventListener("hud:ended", () => (ended = true));
  round();
})();
