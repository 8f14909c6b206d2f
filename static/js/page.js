// On every page: times in the reader's zone with UTC on hover, titles on focus, boxes that scroll and can be reached by key, `?`
// for the keys of the page, and buttons that copy a text.
"use strict";
(() => {
  const two = (number) => String(number).padStart(2, "0");
  const local = (at) =>
    `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;

  // `poll.js` calls it on what it fetched, so that equal parts stay equal
  window.localTimes = (root) => {
    for (const time of root.querySelectorAll("time[datetime][title]")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime()) || time.dataset.done) continue;
      time.dataset.done = "1";
      if ("local" in time.dataset) time.textContent = local(at);
      else time.title = `${local(at)} your time, ${time.title}`;
    }
  };
  window.localTimes(document);

  const scrolls = (box) => box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
  const reach = () => {
    for (const box of document.querySelectorAll(".scroll:not([tabindex])")) {
      if (!scrolls(box) || box.closest("[data-part]")) continue; // parts that are fetched anew say it themselves
      box.tabIndex = 0;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", box.querySelector("caption")?.textContent.trim() || "Table");
    }
  };
  reach();
  addEventListener("resize", reach);

  // a title is shown on hover by the browser, and on focus here
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true"); // readers have the title
  document.body.append(tip);
  document.addEventListener("focusout", () => (tip.hidden = true));
  document.addEventListener("focusin", (event) => {
    const titled = event.target.matches(":focus-visible") && event.target.closest("[title]");
    if (!titled) return;
    tip.textContent = titled.title;
    tip.hidden = false;
    const box = titled.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${box.bottom + tip.offsetHeight + 12 < innerHeight ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
  });

  const keysOfPage = () => {
    const keys = [];
    if (document.querySelector("table[data-rows], [data-row]")) keys.push(["j, k", "next and previous row"], ["Enter", "open the row"]);
    if (document.querySelector("[data-rows] input[type=checkbox], [data-row] input[type=checkbox]")) keys.push(["x", "select the row"]);
    if (document.querySelector("[data-rows] [data-rerun]")) keys.push(["r", "rerun the row, else the first"]);
    for (const one of document.querySelectorAll("[data-key]"))
      keys.push([one.dataset.key, one.ariaLabel || one.placeholder || one.textContent.trim()]);
    if (document.getElementById("log")) keys.push(["l", "log"]);
    if (document.querySelector("[data-search]")) keys.push(["Ctrl K", "search"]);
    return [...keys, ["?", "these keys"], ["Esc", "close"]];
  };
  document.addEventListener("keydown", (event) => {
    if (event.key !== "?" || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea, dialog")) return;
    const sheet = document.createElement("dialog");
    sheet.className = "keys";
    sheet.setAttribute("aria-label", "Keys of this page");
    const list = document.createElement("dl");
    for (const [key, does] of keysOfPage()) {
      const name = document.createElement("kbd");
      name.textContent = key;
      const term = document.createElement("dt");
      term.append(name);
      const text = document.createElement("dd");
      text.textContent = does;
      list.append(term, text);
    }
    sheet.append(list);
    sheet.addEventListener("close", () => sheet.remove());
    document.body.append(sheet);
    sheet.showModal();
  });

  if (!navigator.clipboard) return; // only offered where the page is served securely
  document.documentElement.classList.add("can-copy");
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy-text]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copyText);
    document.getElementById("announcer").textContent = "Copied";
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  });
})();
