// What only the browser knows: the theme it prefers, how wide the page is, and the clipboard.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.intertoken = {
  // Settle the theme, and say it with the width of the timeline.
  screen: function (view) {
    const prefersDark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    const theme = (view && view.theme) || "auto";
    const scheme = theme === "auto" ? (prefersDark ? "dark" : "light") : theme;
    document.documentElement.dataset.theme = scheme;
    document.documentElement.dataset.agThemeMode = scheme;
    const button = document.getElementById("theme");
    if (button) button.textContent = scheme === "dark" ? "Light" : "Dark";
    const main = document.querySelector("main section");
    return { scheme: scheme, width: main ? main.clientWidth - 32 : window.innerWidth - 96 };
  },

  copyLink: async function () {
    try {
      await navigator.clipboard.writeText(window.location.href);
    } catch (refused) {
      return "The browser refused; copy the address instead.";
    }
    const button = document.getElementById("copy-link");
    button.textContent = "Copied";
    window.setTimeout(() => (button.textContent = "Copy link"), 1500);
    return "Link copied";
  },
};
