// Plotly opens a hover at the end of its bar, which may be far from the pointer or out of view: in the timeline, it is
// moved to the pointer.
(function () {
  const CLOSE = 24; // px; hovers as near as this stay where they are
  const FIRST = /^translate\(([^,]+)/;
  let pointed = 0, layer = null;

  const follow = () => {
    const plot = layer.closest(".js-plotly-plot"), edges = plot.getBoundingClientRect();
    for (const label of layer.querySelectorAll(".hovertext")) {
      const place = label.getAttribute("transform") ?? "", x = Number(place.match(FIRST)?.[1]);
      const box = label.getBoundingClientRect(), wanted = pointed - edges.left - x;
      const shift = Math.min(Math.max(wanted, edges.left - box.left), edges.right - box.right);
      const moves = Math.abs(wanted) > CLOSE && Math.abs(shift) >= 1;
      if (moves) label.setAttribute("transform", place.replace(FIRST, `translate(${x + shift}`));
    }
  };
  const watch = new MutationObserver(follow);

  document.addEventListener("pointermove", ({ target, clientX }) => {
    pointed = clientX;
    const entered = target.closest?.("#timeline .js-plotly-plot")?.querySelector(".hoverlayer");
    if (!entered || entered === layer) return;
    watch.disconnect();
    layer = entered;
    watch.observe(layer, { childList: true, subtree: true, attributes: true, attributeFilter: ["transform"] });
  }, true);
})();
