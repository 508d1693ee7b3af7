// Prefetched marks around those that are drawn, coarser with distance. They are fetched when the timeline is at rest
// and the reader is working with it, and painted while it moves, where its own marks end.
(function () {
  const LULL = 120; // ms of standing still
  const DRAWN = 0.1; // of the width on either side, which the timeline draws itself
  const NEAR = 0.5, ALIKE = 1.6; // widths that a view may be moved, times that it may be stretched, before others are fetched
  let around = null, paths = null, waiting = 0, used = false;

  const unpacked = ({ bdata }) => new Uint16Array(Uint8Array.from(atob(bdata), (letter) => letter.charCodeAt(0)).buffer);

  // One path per colour and shade, across in shares of the width that they were fetched for.
  const collect = (yaxis) => {
    const width = around.for[1] - around.for[0];
    const lanes = around.lanes.map(([top, bottom]) => [yaxis.l2p(top), yaxis.l2p(bottom) - yaxis.l2p(top)]);
    const by_look = new Map();
    for (const { ring, colour, opacity, marks } of around.bundles) {
      const [low, high] = around.rings[ring], unit = (high - low) / 65535 / width, first = (low - around.for[0]) / width;
      const all = unpacked(marks), key = `${colour} ${opacity}`, path = by_look.get(key) || new Path2D();
      for (let at = 0; at < all.length; at += 3) {
        const [top, tall] = lanes[all[at + 2]];
        path.rect(first + all[at] * unit, top, (all[at + 1] - all[at]) * unit, tall);
      }
      by_look.set(key, path);
    }
    return by_look;
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
      paths = null;
      fetch(plot, moving);
    },
    // Paint a frame of the gesture beyond the marks that are drawn; `place` is from s to px.
    paint: function (context, plot, place) {
      if (!around || around.part !== plot.layout.meta?.part) return;
      const { xaxis, yaxis } = plot._fullLayout, [low, high] = xaxis.range, margin = DRAWN * (high - low), far = 1e5;
      paths = paths || collect(yaxis);
      context.save();
      context.beginPath();
      context.rect(place(low - margin) - far, 0, far, far);
      context.rect(place(high + margin), 0, far, far);
      context.clip();
      context.transform(place(around.for[1]) - place(around.for[0]), 0, 0, 1, place(around.for[0]), yaxis._offset);
      for (const [key, path] of paths) {
        const [colour, opacity] = key.split(" ");
        Object.assign(context, { fillStyle: colour, globalAlpha: Number(opacity) });
        context.fill(path);
      }
      context.restore();
    },
    // The reader moves the timeline: what would be fetched now would be for another range.
    wait: function () {
      used = true;
      window.clearTimeout(waiting);
    },
    show: function (fetched) {
      around = fetched;
      paths = null;
    },
  };
})();
