// What Dash's own components leave unsaid to screen readers, or say wrongly. Each line ends with what it would be without.
(function () {
  const say = (selector, change) => document.querySelectorAll(selector).forEach(change);
  const nameOfGroup = (part) => part.closest("[role=group]")?.getAttribute("aria-label") || "";
  const settle = () => {
    say(".choice[role=listbox]", (list) => {
      list.setAttribute("role", "radiogroup");
      list.setAttribute("aria-label", nameOfGroup(list));
    }); // a list without a name
    say(".choice > [role=option]", (option) => ["role", "aria-selected"].forEach((name) => option.removeAttribute(name))); // a control in a control
    say(".dash-slider-thumb:not([aria-label])", (thumb) => thumb.setAttribute("aria-label", nameOfGroup(thumb))); // a slider without a name
    say("a.dash-dropdown-clear[aria-label]", (cross) => cross.removeAttribute("aria-label")); // a name without a role; its title says it
    say(".dash-dropdown-focus-target:not([tabindex='-1'])", (target) => (target.tabIndex = -1)); // hidden, and yet in the order of the keys
  };
  let waiting = 0;
  const later = () => (waiting = waiting || window.requestAnimationFrame(() => ((waiting = 0), settle())));
  const seen = { childList: true, subtree: true, attributes: true, attributeFilter: ["tabindex", "role", "aria-label"] };
  new MutationObserver(later).observe(document.documentElement, seen);
})();
