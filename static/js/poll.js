// [data-poll=URL] fetches URL again and again and replaces its parts ([data-part=NAME]) with the new ones.
// A part in which somebody is typing, or has opened a menu, is left alone. The answer's X-Poll: stop ends it.
"use strict";
(() => {
  const busy = (part) =>
    part.querySelector("details.menu[open]") || (part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea"));

  const replace = (part, fresh) => {
    if (part.innerHTML === fresh.innerHTML) return;
    const opened = [...part.querySelectorAll("details[open]")].map((one) => one.querySelector("summary").textContent);
    const focused = part.contains(document.activeElement) ? document.activeElement.textContent : null;
    part.replaceChildren(...fresh.childNodes);
    for (const details of part.querySelectorAll("details"))
      if (opened.includes(details.querySelector("summary").textContent)) details.open = true;
    if (focused !== null)
      [...part.querySelectorAll("a, button, summary")].find((one) => one.textContent === focused)?.focus();
  };

  const update = (root, text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    window.localTimes?.(fresh);
    for (const part of root.querySelectorAll("[data-part]")) {
      const next = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
      if (!next || busy(part)) continue;
      const said = next.dataset.say;
      if (said && said !== part.dataset.say) document.getElementById("announcer").textContent = said;
      Object.assign(part.dataset, next.dataset);
      replace(part, next);
    }
    root.dispatchEvent(new Event("hud:polled", { bubbles: true }));
  };

  const watch = (root) => {
    const every = Number(root.dataset.pollEvery) || 5000;
    let wait = every;
    const round = async () => {
      let stop = false;
      if (!document.hidden) {
        try {
          const response = await fetch(root.dataset.poll, { headers: { Accept: "text/html" }, redirect: "error" });
          if (!response.ok) throw new Error(response.status);
          update(root, await response.text());
          stop = response.headers.get("X-Poll") === "stop";
          wait = every;
        } catch {
          wait = Math.min(wait * 2, 60_000); // the site is away: ask less often
        }
      }
      if (!stop) setTimeout(round, wait);
      else root.dispatchEvent(new Event("hud:ended", { bubbles: true }));
    };
    setTimeout(round, every);
  };

  document.querySelectorAll("[data-poll]").forEach(watch);
})();
