// Ctrl- or ⌘-drag over the timeline selects an area, whose sums are requested. Escape cancels.
(function () {
  const LEAST = 4; // px that are a drag
  let begun = null, box = null;

  const plotted = (target) => target.closest?.("#timeline .js-plotly-plot")?._fullLayout?._plots?.xy && target.closest("#timeline .js-plotly-plot");
  const within = (plot, { clientX, clientY }) => {
    const { left, top } = plot.getBoundingClientRect(), { xaxis, yaxis } = plot._fullLayout;
    const x = Math.min(Math.max(clientX - left - xaxis._offset, 0), xaxis._length);
    const y = Math.min(Math.max(clientY - top - yaxis._offset, 0), yaxis._length);
    return { x: x, y: y, time: xaxis.p2l(x), height: yaxis.p2l(y), left: left + xaxis._offset + x, top: top + yaxis._offset + y };
  };
  const end = () => {
    box?.remove();
    begun = box = null;
  };

  document.addEventListener("mousedown", (event) => {
    const plot = event.button === 0 && (event.ctrlKey || event.metaKey) && plotted(event.target);
    if (!plot || !plot.data?.length) return;
    event.preventDefault();
    event.stopPropagation();
    begun = { plot: plot, from: within(plot, event) };
    box = document.body.appendChild(document.createElement("div"));
    box.className = "area";
  }, true);

  document.addEventListener("mousemove", (event) => {
    if (!begun) return;
    event.stopPropagation();
    const to = within(begun.plot, event), { from } = begun;
    Object.assign(box.style, {
      left: `${Math.min(from.left, to.left)}px`, width: `${Math.abs(to.left - from.left)}px`,
      top: `${Math.min(from.top, to.top)}px`, height: `${Math.abs(to.top - from.top)}px`,
    });
  }, true);

  document.addEventListener("mouseup", (event) => {
    if (!begun) return;
    event.stopPropagation();
    const { plot, from } = begun, to = within(plot, event);
    end();
    if (Math.abs(to.x - from.x) < LEAST) return;
    window.dash_clientside.timeline.ask({ what: "area", x: [from.time, to.time], y: [from.height, to.height] });
  }, true);

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !begun) return;
    event.preventDefault(); // it deselects nothing
    end();
  }, true);
})();
