// Prefetched marks around those that are drawn, coarser with distance. They are fetched when the timeline is at rest
// and the reader is working with it, lie beneath its own marks, and are visible only where these end.
(function () {
  const LULL = 120; // ms of standing still
  const DRAWN = 0.1; // of the width on either side, which the timeline draws itself
  const NEAR = 0.5, ALIKE = 1.6; // widths that a view may be moved, times that it may be stretched, before others are fetched
  const SVG = "http://www.w3.org/2000/svg";
  let around = null, layer = null, waiting = 0, used = false;

  const made = (name, attributes, ...children) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const unpacked = ({ bdata }) => new Uint16Array(Uint8Array.from(atob(bdata), (letter) => letter.charCodeAt(0)).buffer);

  // One path per colour and shade: hundreds of marks then cost a frame no more than one.
  const draw = (plot) => {
    const { xaxis, yaxis } = plot._fullLayout, scale = xaxis._length / (around.for[1] - around.for[0]);
    const lanes = around.lanes.map(([top, bottom]) => [yaxis.l2p(top), yaxis.l2p(bottom) - yaxis.l2p(top)]);
    const paths = new Map();
    for (const { ring, colour, opacity, marks } of around.bundles) {
      const [low, high] = around.rings[ring], unit = ((high - low) / 65535) * scale, first = (low - around.for[0]) * scale;
      const all = unpacked(marks), key = `${colour} ${opacity}`;
      let text = "";
      for (let at = 0; at < all.length; at += 3) {
        const [top, tall] = lanes[all[at + 2]], wide = (all[at + 1] - all[at]) * unit;
        text += `M${(first + all[at] * unit).toFixed(2)} ${top}h${wide.toFixed(2)}v${tall}h${(-wide).toFixed(2)}z`;
      }
      paths.set(key, [...(paths.get(key) || []), text]);
    }
    const marks = [...paths].map(([key, texts]) => {
      const [fill, opacity] = key.split(" ");
      return made("path", { d: texts.join(""), fill: fill, "fill-opacity": opacity });
    });
    const inner = made("g", {}, ...marks), rects = [made("rect", { y: -1e4, height: 1e5 }), made("rect", { y: -1e4, height: 1e5 })];
    const outer = made("g", { class: "ahead", "clip-path": "url(#ahead)" }, made("clipPath", { id: "ahead" }, ...rects), inner);
    layer = { outer, inner, rects, scale };
  };

  const gone = () => {
    layer?.outer.remove();
    layer = null;
  };

  const place = (plot) => {
    if (around?.part !== plot.layout.meta?.part) return gone();
    if (!layer) draw(plot);
    const { xaxis, _plots } = plot._fullLayout, [low, high] = xaxis.range, per_s = xaxis._length / (high - low);
    layer.inner.setAttribute("transform", `translate(${(around.for[0] - low) * per_s} 0) scale(${per_s / layer.scale} 1)`);
    const [before, after] = layer.rects, far = 1e4 * xaxis._length;
    Object.entries({ x: -far, width: far - DRAWN * xaxis._length }).forEach(([key, value]) => before.setAttribute(key, value));
    Object.entries({ x: (1 + DRAWN) * xaxis._length, width: far }).forEach(([key, value]) => after.setAttribute(key, value));
    const marks = _plots.xy.plot.node();
    if (layer.outer.parentNode !== marks) marks.prepend(layer.outer);
  };

  const suffices = ([low, high]) => {
    const [from, to] = around.for, stretch = (high - low) / (to - from);
    return Math.abs(low + high - from - to) / 2 < NEAR * (to - from) && stretch < ALIKE && stretch > 1 / ALIKE;
  };

  const fetch = (plot, moving) => {
    const part = plot.layout.meta?.part, { range } = plot._fullLayout.xaxis;
    window.clearTimeout(waiting);
    if (!used || !part || moving || (around?.part === part && suffices(range))) return;
    waiting = window.setTimeout(() => window.dash_clientside.set_props("wanted", { data: [part, ...range] }), LULL);
  };
  document.addEventListener("pointerover", ({ target }) => {
    const plot = !used && target.closest?.("#timeline") && window.dash_clientside.gestures.plotted();
    if (!plot) return;
    used = true;
    fetch(plot, plot.classList.contains("moving"));
  });

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.ahead = {
    // The timeline was rendered, and is at rest or moves on.
    drawn: function (plot, moving) {
      place(plot);
      fetch(plot, moving);
    },
    // The reader moves the timeline: what would be fetched now would be for another range.
    wait: function () {
      used = true;
      window.clearTimeout(waiting);
    },
    show: function (fetched) {
      around = fetched;
      gone();
      const plot = window.dash_clientside.gestures.plotted();
      if (plot && around) place(plot);
    },
  };
})();
