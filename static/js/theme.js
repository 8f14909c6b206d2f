// Colour theme: the system's, or the one this visitor chose. Runs in <head>, before anything is drawn.
"use strict";
(() => {
  const choices = ["system", "light", "dark"];
  const stored = () => {
    try {
      const choice = localStorage.getItem("theme");
      return choices.includes(choice) ? choice : "system";
    } catch {
      return "system"; // storage may be forbidden
    }
  };
  const apply = (choice) => {
    if (choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    document.dispatchEvent(new Event("hud:theme"));
  };
  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector("[data-theme-switch]");
    if (!button) return;
    const label = () => {
      button.title = `Theme: ${stored()}`;
      button.setAttribute("aria-label", button.title);
    };
    button.hidden = false;
    label();
    button.addEventListener("click", () => {
      const next = choices[(choices.indexOf(stored()) + 1) % choices.length];
      try {
        localStorage.setItem("theme", next);
      } catch {
        return;
      }
      apply(next);
      label();
    });
  });
})();
