// Accessibility fixes to Dash's own components, for screen readers and the keyboard, applied after each render.
(function () {
  const repair = () => {
    // Tab goes to the button of a dropdown, not to the hidden field before it that passes the focus on.
    document.querySelectorAll(".dash-dropdown-focus-target:not([tabindex='-1'])").forEach((field) => {
      field.tabIndex = -1;
      field.parentElement.querySelector("button.dash-dropdown").tabIndex = 0;
    });
    // A name without a role; the title repeats it.
    document.querySelectorAll("a.dash-dropdown-clear[aria-label]").forEach((link) => link.removeAttribute("aria-label"));
    document.querySelectorAll(".dash-slider-thumb:not([aria-label])").forEach((thumb) => {
      const name = thumb.closest("[aria-label]")?.getAttribute("aria-label");
      if (name) thumb.setAttribute("aria-label", name);
    });
  };
  let waiting = 0;
  const later = () => (waiting = waiting || window.requestAnimationFrame(() => ((waiting = 0), repair())));
  const seen = { childList: true, subtree: true, attributes: true, attributeFilter: ["tabindex", "aria-label"] };
  new MutationObserver(later).observe(document.documentElement, seen);
})();
