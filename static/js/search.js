// Ctrl-K, / or a click on the search box of the page's head opens a dialog over /search.json: arrow keys choose,
// Enter goes there, Esc closes. Without this script the box leads to /search/, which finds the same.
"use strict";
(() => {
  const address = document.currentScript.dataset.address;
  let dialog, input, list, note, timer, asked;

  const make = (tag, about, ...children) => {
    const one = document.createElement(tag);
    for (const [name, value] of Object.entries(about)) one.setAttribute(name, value);
    one.append(...children);
    return one;
  };

  const build = () => {
    input = make("input", {
      type: "search", name: "q", maxlength: 200, autocomplete: "off", placeholder: "Model, run, commit, host",
      "aria-label": "Search", role: "combobox", "aria-expanded": "true", "aria-controls": "search-results", "aria-autocomplete": "list",
    });
    list = make("ul", { id: "search-results", role: "listbox", "aria-label": "Results" });
    note = make("p", { class: "search-note", role: "status" });
    const form = make("form", { action: address, role: "search" }, input, make("button", { type: "button", "data-close": "" }, "Close"));
    dialog = make("dialog", { class: "search-dialog", "aria-label": "Search" }, form, list, note);
    document.body.append(dialog);
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(find, 120);
    });
    form.querySelector("[data-close]").addEventListener("click", () => dialog.close());
    form.addEventListener("submit", (event) => {
      const chosen = list.querySelector("[aria-selected=true]");
      if (!chosen) return;
      event.preventDefault();
      location.assign(chosen.dataset.url);
    });
    input.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step || !list.children.length) return;
      event.preventDefault();
      const all = [...list.children];
      const at = all.findIndex((one) => one.getAttribute("aria-selected") === "true");
      choose(all[(at + step + all.length) % all.length]);
    });
    dialog.addEventListener("click", (event) => {
      const one = event.target.closest("li");
      if (one) location.assign(one.dataset.url);
      else if (event.target === dialog) dialog.close(); // outside of its box
    });
  };

  const choose = (one) => {
    for (const other of list.children) other.setAttribute("aria-selected", String(other === one));
    if (one) {
      input.setAttribute("aria-activedescendant", one.id);
      one.scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };

  const find = async () => {
    const text = input.value.trim();
    asked = text;
    if (!text) {
      list.replaceChildren();
      note.textContent = "Words of a case, suite, backend, arch or host; the id of a run; the first characters of a commit.";
      return;
    }
    try {
      const response = await fetch(`${address.replace(/\/$/, "")}.json?q=${encodeURIComponent(text)}`);
      if (!response.ok) throw new Error(response.status);
      const found = await response.json();
      if (asked !== text) return; // a later one is on its way
      list.replaceChildren(
        ...found.items.map((one, number) =>
          make("li", { role: "option", id: `search-${number}`, "aria-selected": "false", "data-url": one.url },
            make("span", { class: "search-kind" }, one.kind),
            make("span", {}, make("b", {}, one.title), " ", make("span", { class: "search-about" }, one.about))),
        ),
      );
      choose(list.firstElementChild);
      const total = Object.values(found.totals).reduce((sum, count) => sum + count, 0);
      note.textContent = total ? `${found.items.length} of ${total}` : "Nothing matches all of these words.";
    } catch {
      note.textContent = "The search does not answer; Enter opens its page.";
    }
  };

  const open = () => {
    if (!dialog) build();
    if (dialog.open) return;
    dialog.showModal();
    input.select();
    find();
  };

  document.querySelector("[data-search]")?.addEventListener("click", open);
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, [contenteditable]");
    const shortcut = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k";
    if (!shortcut && (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey)) return;
    event.preventDefault();
    open();
  });
})();
