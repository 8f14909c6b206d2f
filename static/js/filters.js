// Filters live in the URL, without the empty ones. A changed choice is sent at once.
"use strict";
for (const form of document.querySelectorAll("form[data-filters]")) {
  const go = () => {
    const query = new URLSearchParams(new FormData(form));
    for (const [name, value] of [...query]) if (value === "") query.delete(name);
    const text = query.toString();
    location.assign(location.pathname + (text ? `?${text}` : ""));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
  for (const select of form.querySelectorAll("select")) select.addEventListener("change", go);
}
