// <button data-copy="id">: copies the text of that element.
"use strict";
for (const button of document.querySelectorAll("button[data-copy]")) {
  if (!navigator.clipboard) continue; // only offered where the page is served securely
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent.trim());
    button.textContent = "Copied";
    document.getElementById("announcer").textContent = "Copied";
  });
}
