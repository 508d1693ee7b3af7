// What is asked of the timeline by pointing at it, and by buttons that say themselves what they ask for.
(function () {
  const ask = (wish) => window.dash_clientside.set_props("asked", { data: { ...wish, at: performance.now() } });
  const pointer = { x: 0, shift: false };
  document.addEventListener("pointerdown", ({ clientX, shiftKey }) => Object.assign(pointer, { x: clientX, shift: shiftKey }), true);

  document.addEventListener("click", ({ target }) => {
    const copies = target.closest("[data-copies]"), notes = target.closest("[data-notes]");
    if (copies) window.dash_clientside.intertoken.copy(document.getElementById(copies.dataset.copies).textContent, copies.id, copies.textContent);
    if (notes) ask({ what: "bookmark", note: document.getElementById(notes.dataset.notes).value });
    const button = target.closest("[data-ask]");
    if (!button) return;
    pressed = { ask: button.dataset.ask, holder: button.closest("#row-list, #picked, #sums, #bookmark-list") };
    ask(JSON.parse(button.dataset.ask));
  });
  let pressed = null;

  // Enter in the field goes to the next match of what stands there, even if the page was not told yet.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.id === "find") ask({ what: "next", find: event.target.value, back: event.shiftKey });
  });

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.timeline = {
    // A click on a mark: which one, and where on the time axis. Told once; the same mark may be clicked again.
    clicked: function (click) {
      const point = click && click.points && click.points[0];
      if (!point) return;
      const plot = document.querySelector("#timeline .js-plotly-plot"), { xaxis } = plot._fullLayout;
      const x = xaxis.p2l(pointer.x - plot.getBoundingClientRect().left - xaxis._offset);
      const event = Array.isArray(point.customdata) ? point.customdata[0] : -1;
      window.dash_clientside.set_props("timeline", { clickData: null });
      ask({ what: "click", y: point.y, event: event, x: x, measure: pointer.shift });
    },

    // A range dragged over the minimap, or a click in it.
    mapped: function (selected, click) {
      if (selected && selected.range) ask({ what: "map", x: selected.range.x });
      else if (click && click.points.length) ask({ what: "map", x: click.points[0].x });
      if (selected || click) window.dash_clientside.set_props("minimap", { selectedData: null, clickData: null });
    },

    // The part of the view that sums depend on, told only when it is another.
    summed: function (part, before) {
      const { runs, token, align, area, rows, rates } = part || {};
      const now = area ? { runs, token, align, area, rows, rates } : null;
      return JSON.stringify(now) === JSON.stringify(before ?? null) ? window.dash_clientside.no_update : now;
    },

    // Give the focus back to a button that has been drawn anew, or to the first one that stands there now.
    refocus: function () {
      const { ask: wish, holder } = pressed || {};
      window.setTimeout(() => {
        if (!holder || document.activeElement !== document.body) return;
        const buttons = [...holder.querySelectorAll("[data-ask]")];
        (buttons.find((button) => button.dataset.ask === wish) || buttons[0])?.focus();
      });
    },

    // The screen, told only when more than the range is another: what is not drawn on the time axis stays as it is.
    steady: function (screen, view, before) {
      const { range, ...part } = view || {};
      const now = { ...screen, part: part };
      return JSON.stringify(now) === JSON.stringify(before) ? window.dash_clientside.no_update : now;
    },

    // The part of the view that is said in words, told only when it is another.
    chosen: function (view, before) {
      const { range, theme, ...part } = view;
      window.dash_clientside.gestures.heed(range);
      return JSON.stringify(part) === JSON.stringify(before) ? window.dash_clientside.no_update : part;
    },
  };
})();
