// Wheel, pinch, keys and buttons move the timeline at once: what is drawn is shifted and stretched, without a request.
// When the hand rests, one request has it drawn anew; that drawing has the range that the hand has left, so nothing jumps.
(function () {
  const REST = 150; // ms without a movement
  const PER_NOTCH = 0.0018, PER_PINCH = 0.01; // of a wheel's pixels: how much the range's logarithm changes
  const SHORTEST = 1e-7, LONGEST = 1e5; // s
  const STEPS = { "zoom-in": [0.5, 0], "zoom-out": [2, 0], "pan-left": [1, -0.35], "pan-right": [1, 0.35] };
  const whole = (time) => Math.round(time * 1e9) / 1e9; // as the server says a whole number of ns
  let target = null, asked = null, viewed = null, resting = 0, frame = 0;

  const plotted = () => {
    const plot = document.querySelector("#timeline .js-plotly-plot");
    return plot?.data?.length && plot._fullLayout?._plots?.xy && plot.checkVisibility() ? plot : null;
  };
  const settled = () => (target = asked = null);

  // Show the target by moving what was drawn for another range.
  const show = () => {
    frame = 0;
    const plot = plotted();
    if (!plot) return;
    const { xaxis, _plots } = plot._fullLayout, { plot: marks, clipRect } = _plots.xy;
    const [low, high] = xaxis.range, [from, to] = target || [low, high];
    const stretch = (high - low) / (to - from), shift = ((low - from) / (to - from)) * xaxis._length;
    const still = !target || (Math.abs(shift) < 1e-6 && Math.abs(stretch - 1) < 1e-9);
    const to_px = (x) => ((x - from) / (to - from)) * xaxis._length - xaxis.l2p(x);
    plot.classList.toggle("moving", !still);
    plot.classList.toggle("crowded", !still && stretch < 0.7);
    plot.style.setProperty("--unstretch", still ? "" : 1 / stretch);
    marks.node().style.scale = still ? "" : `${stretch} 1`;
    marks.node().style.translate = still ? "" : `${shift + xaxis._offset * (1 - stretch)}px 0`;
    clipRect.node().style.transform = still ? "" : `translate(${-shift / stretch}px, 0) scale(${1 / stretch}, 1)`;
    const place = (node, x) => {
      const by = still ? 0 : to_px(x), at = xaxis.l2p(x) + by;
      node.style.translate = by ? `${by}px 0` : "";
      node.style.visibility = still || (at >= 0 && at <= xaxis._length) ? "" : "hidden";
    };
    for (const node of plot.querySelectorAll("path.xgrid, path.xtick, .xtick > text")) {
      const x = (node.__data__ ?? node.parentNode.__data__)?.x;
      if (x !== undefined) place(node, x);
    }
    plot.querySelectorAll("path.xzl").forEach((node) => place(node, 0));
    const { annotations, shapes } = plot._fullLayout;
    annotations.forEach((each, index) => {
      if (each.xref === "x") plot.querySelectorAll(`.annotation[data-index="${index}"]`).forEach((node) => place(node, each.x));
    });
    shapes.forEach((each, index) => {
      if (each.xref !== "x") return;
      for (const node of plot.querySelectorAll(`.shapelayer [data-index="${index}"]`)) {
        node.style.scale = still ? "" : `${stretch} 1`;
        node.style.translate = still ? "" : `${shift + xaxis._offset * (1 - stretch)}px 0`;
      }
    });
  };
  const soon = () => (frame = frame || window.requestAnimationFrame(show));

  const refine = () => {
    resting = 0;
    if (!target || !plotted()) return;
    asked = target;
    const [low, high] = target;
    window.dash_clientside.set_props("timeline", { relayoutData: { "xaxis.range[0]": low, "xaxis.range[1]": high } });
  };

  const attended = new WeakSet();
  const attend = (plot) => {
    if (attended.has(plot)) return;
    attended.add(plot);
    plot.on("plotly_relayout", () => (viewed = null)); // dragged: the view comes later
    plot.on("plotly_afterplot", () => {
      const [low, high] = plot._fullLayout.xaxis.range;
      if (asked && asked === target && low === asked[0] && high === asked[1]) settled();
      show();
    });
  };

  // Stretch the range by `factor` about `at`, a share of it, and move it by `shift` of its width.
  const move = (plot, factor, at, shift) => {
    attend(plot);
    const [low, high] = target || viewed || plot._fullLayout.xaxis.range, width = high - low;
    const wide = Math.min(Math.max(width * factor, SHORTEST), LONGEST);
    const from = whole(low + (width - wide) * at + shift * width);
    target = [from, whole(from + wide)];
    window.clearTimeout(resting);
    resting = window.setTimeout(refine, REST);
    soon();
  };

  document.addEventListener("wheel", (event) => {
    const plot = event.target.closest?.("#timeline") && plotted();
    if (!plot || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    const { xaxis } = plot._fullLayout, unit = event.deltaMode === 1 ? 33 : 1;
    const across = (event.shiftKey ? event.deltaX || event.deltaY : event.deltaX) * unit;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return move(plot, 1, 0, across / xaxis._length);
    const at = (event.clientX - plot.getBoundingClientRect().left - xaxis._offset) / xaxis._length;
    const by = event.deltaY * unit * (event.ctrlKey ? PER_PINCH : PER_NOTCH);
    move(plot, Math.exp(by), Math.min(Math.max(at, 0), 1), 0);
  }, { passive: false, capture: true });

  // The buttons that zoom and move, which the keys press, too.
  document.addEventListener("click", (event) => {
    const step = STEPS[event.target.closest("button")?.id], plot = step && plotted();
    if (!plot) return;
    event.stopPropagation();
    move(plot, step[0], 0.5, step[1]);
  }, true);

  // A view with another range than the hand has asked for is somebody else's wish.
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.gestures = {
    heed: function (range) {
      viewed = range && range.map((time) => time / 1e9); // which may not be drawn yet
      const plot = plotted();
      if (plot) attend(plot);
      if (resting || !asked) return;
      if (!range || range[0] !== Math.round(asked[0] * 1e9) || range[1] !== Math.round(asked[1] * 1e9)) settled();
    },
  };
})();
