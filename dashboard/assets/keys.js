// Keys of the timeline. A key presses a button, so that its action is defined in one place: the button's.
(function () {
  // A key, and the buttons that it presses: the first one that is on the page and enabled.
  const BUTTONS = {
    w: ["zoom-in"], s: ["zoom-out"], a: ["pan-left"], d: ["pan-right"], ArrowLeft: ["pan-left"], ArrowRight: ["pan-right"],
    Home: ["show-all"], g: ["show-gap"], t: ["show-token"], ".": ["token-on"], ",": ["token-back"],
    n: ["find-on", "token-on"], p: ["find-back", "token-back"], m: ["measure"], e: ["sum"], b: ["bookmarks-open"], r: ["rows-open"],
    "[": ["go-back"], "]": ["go-on"], "?": ["help"], Escape: ["deselect"],
  };
  const TYPES = "input, textarea, select, [contenteditable], dialog, [role=slider], [role=listbox], [role=radiogroup], [role=combobox], .ag-root-wrapper";
  const on = () => document.querySelector("#keys-on input")?.checked ?? true;
  const usable = (key) => {
    const button = document.getElementById(key);
    return button && !button.disabled && button.checkVisibility() ? button : null;
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented || !on()) return;
    if (event.target.closest(TYPES) || document.querySelector("dialog[open]")) return;
    const field = document.getElementById({ "/": "find", j: "go" }[event.key]);
    if (field) {
      event.preventDefault();
      return field.select();
    }
    const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const button = (BUTTONS[name] || []).map(usable).find(Boolean);
    if (!button) return;
    event.preventDefault();
    button.click();
  });

  document.addEventListener("click", ({ target }) => {
    const dialog = document.getElementById("keys");
    if (target.closest("#help")) dialog.showModal();
    if (target.closest("#keys-close")) dialog.close();
  });
})();
