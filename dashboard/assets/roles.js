// What Dash's own components keep from those who use a screen reader, said after they are drawn.
(function () {
  const repair = () => {
    // Who tabs gets to the button of a list, not to a hidden field before it that passes the focus on.
    document.querySelectorAll(".dash-dropdown-focus-target[tabindex='0']").forEach((field) => {
      field.tabIndex = -1;
      field.parentElement.querySelector("button.dash-dropdown").tabIndex = 0;
    });
    document.querySelectorAll("a.dash-dropdown-clear[aria-label]").forEach((link) => link.removeAttribute("aria-label"));
    document.querySelectorAll(".dash-slider-thumb:not([aria-label])").forEach((thumb) => {
      const name = thumb.closest("[aria-label]")?.getAttribute("aria-label");
      if (name) thumb.setAttribute("aria-label", name);
    });
  };
  new MutationObserver(repair).observe(document.documentElement, { childList: true, subtree: true });
})();
