// The minimap: a frame around the visible range, which moves with gestures, and clicks and drags in it.
(function () {
  const LEAST = 4; // px: a narrower frame would not be seen
  const graph = () => document.querySelector("#minimap .js-plotly-plot");
  const plotted = () => (graph()?._fullLayout?.xaxis && graph().data?.length ? graph() : null);
  let shown = null, waiting = 0;

  const place = () => {
    const plot = plotted(), frame = document.getElementById("in-view");
    if (!plot || !shown || !frame) return;
    const { xaxis, _size } = plot._fullLayout, px = (time) => Math.min(Math.max(xaxis.l2p(time), 0), xaxis._length);
    const [low, high] = shown.map(px), wide = Math.max(high - low, LEAST);
    const from = Math.min(Math.max((low + high - wide) / 2, 0), xaxis._length - wide);
    Object.assign(frame.style, { display: "block", left: `${xaxis._offset + from}px`, width: `${wide}px`, top: `${_size.t}px`, height: `${_size.h}px` });
  };
  // The minimap is drawn after the timeline, and anew with other runs or another width.
  const attended = new WeakSet();
  const attend = () => {
    waiting = 0;
    const plot = graph();
    if (!plot?.on) waiting = window.requestAnimationFrame(attend);
    else if (!attended.has(plot)) attended.add(plot) && plot.on("plotly_afterplot", place);
    place();
  };

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.minimap = {
    frame: function (range) {
      shown = range;
      if (!waiting) attend();
    },

    // A drag or a click in the minimap: the timeline moves there.
    pointed: function (selected, click) {
      const { go, range } = window.dash_clientside.gestures, x = click?.points?.[0]?.x, now = range();
      if (selected?.range) go([...selected.range.x].sort((one, other) => one - other));
      else if (x !== undefined && now) go(now.map((time) => time + x - (now[0] + now[1]) / 2));
      if (selected?.range && plotted()) window.Plotly.relayout(plotted(), { selections: [] });
      if (selected || click) window.dash_clientside.set_props("minimap", { selectedData: null, clickData: null });
    },
  };
})();
