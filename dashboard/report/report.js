// Draws the figures of the report in the theme that the browser prefers, and in the light one for print.
"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)").matches; // there a drag moves the page
  const config = { displayModeBar: false, doubleClick: "reset", showTips: false };
  let room = 0;

  const draw = (theme, width) => {
    for (const [id, { themes, height, narrowest, widest }] of Object.entries(figures)) {
      const { data, layout } = themes[theme];
      const size = { width: Math.max(narrowest, Math.min(widest, width)), height, autosize: false };
      const moves = touch ? { dragmode: false } : {};
      Plotly.react(id, data, { ...layout, ...size, ...moves, uirevision: true }, config);
    }
  };
  const onScreen = () => {
    room = document.querySelector(".holder").clientWidth;
    draw(dark.matches ? "dark" : "light", room);
  };

  dark.addEventListener("change", onScreen);
  window.addEventListener("resize", () => {
    if (document.querySelector(".holder").clientWidth !== room) onScreen();
  });
  window.addEventListener("beforeprint", () => draw("light", Infinity));
  window.addEventListener("afterprint", onScreen);
  onScreen();
})();
