// Requests made by pointing at the timeline, and by buttons that carry their request.
(function () {
  const MOST = 50;
  const SLACK = 4; // px: a press that moves less is a click
  const NEAR = 2; // px from a bar that count as on it: narrow ones are hard to hit
  const TWICE = 200; // ms in which a second click makes it a double click
  // Quick requests are sent with those not handled yet: of two overlapping calls Dash drops the first.
  let earlier = [];
  const ask = (what) => {
    const at = performance.now(), { heeded, owe } = window.dash_clientside.gestures, wish = { ...what, at: at };
    earlier = earlier.filter((one) => one.at > heeded("asked")).slice(-MOST);
    owe("asked", at);
    window.dash_clientside.set_props("asked", { data: { ...wish, earlier: earlier } });
    earlier = [...earlier, wish];
  };

  // What elements say, as seen, without the buttons that act on it; of hidden ones all their text.
  const textOf = (ids) => {
    document.body.classList.add("copying");
    const said = ids.split(" ").map((id) => document.getElementById(id).innerText.trim().replace(/\n+/g, "\n"));
    document.body.classList.remove("copying");
    return said.filter(Boolean).join("\n");
  };

  document.addEventListener("click", ({ target }) => {
    const copies = target.closest("[data-copies]"), notes = target.closest("[data-notes]");
    if (copies) window.dash_clientside.intertoken.copy(textOf(copies.dataset.copies), copies.id, copies.textContent);
    if (notes) ask({ what: "bookmark", note: document.getElementById(notes.dataset.notes).value });
    const button = target.closest("[data-ask]");
    if (!button) return;
    pressed = { ask: button.dataset.ask, holder: button.closest("#row-list, #picked, #sums, #bookmark-list") };
    ask(JSON.parse(button.dataset.ask));
  });
  let pressed = null;

  // Enter in a field goes to the next match, or to the place typed, even if the page has not received the text yet.
  const go = (step) => ask({ what: "go", text: document.getElementById("go").value, step: step });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    if (event.target.id === "find") ask({ what: "next", find: event.target.value, back: event.shiftKey });
    if (event.target.id === "go") go(event.shiftKey ? -1 : 1);
  });
  document.addEventListener("click", ({ target }) => {
    const step = { "go-on": 1, "go-back": -1 }[target.closest("button")?.id];
    if (step) go(step);
  });
  // A click is a press that moves nothing. It waits until it is known not to be the first of a double click; of a slow
  // one it is undone.
  let waiting = 0, chose = false, press = null;
  document.addEventListener("mousedown", ({ target, button, detail, clientX, clientY, shiftKey, ctrlKey, metaKey, altKey }) => {
    if (detail > 1) window.clearTimeout(waiting);
    else chose = false;
    const counts = button === 0 && detail < 2 && !ctrlKey && !metaKey && !altKey && target.closest?.("#timeline .nsewdrag");
    press = counts ? { x: clientX, y: clientY, shift: shiftKey } : null;
  }, true);
  document.addEventListener("mouseup", ({ clientX, clientY }) => {
    const { plotted, dragged } = window.dash_clientside.gestures, plot = press && plotted();
    if (plot && !dragged() && Math.hypot(clientX - press.x, clientY - press.y) < SLACK) clicked(plot, press);
    press = null;
  }, true);
  // Which bar, and where on the time axis.
  const clicked = (plot, { x, y, shift }) => {
    const mark = window.dash_clientside.timeline.mark(plot, { x, y }), { xaxis } = plot._fullLayout;
    if (!mark) return;
    const time = xaxis.p2l(x - plot.getBoundingClientRect().left - xaxis._offset);
    window.clearTimeout(waiting);
    waiting = window.setTimeout(() => (chose = true) && ask({ what: "click", ...mark, x: time, measure: shift }), TWICE);
  };
  document.addEventListener("dblclick", ({ target, clientX, clientY }) => {
    const plot = target.closest?.("#timeline .nsewdrag") && window.dash_clientside.gestures.plotted();
    if (!plot) return;
    if (chose) ask({ what: "forget" });
    const { left, top } = plot.getBoundingClientRect(), { xaxis, yaxis } = plot._fullLayout;
    ask({ what: "token", x: xaxis.p2l(clientX - left - xaxis._offset), y: yaxis.p2l(clientY - top - yaxis._offset) });
  });

  // What arrives above a timeline in use, such as the comparison, would move it: the page scrolls along. It is in use
  // from a press, a key or a notch that moves it, until the reader turns to something else.
  const IN_USE = "#timeline-holder, #minimap-holder, .moves";
  let height = null; // where it begins on the page, px, while it is in use
  const begins = () => document.getElementById("timeline").getBoundingClientRect().top + window.scrollY;
  const sized = new ResizeObserver(() => {
    const before = height;
    height = begins();
    if (height !== before) window.scrollBy({ top: height - before, behavior: "instant" });
  });
  const turn = ({ type, target }) => {
    const main = document.getElementById("timeline")?.closest("main"), holds = Boolean(target.closest?.(IN_USE));
    if (!main || holds === (height !== null) || (type === "wheel" && !holds)) return;
    height = holds ? begins() : null;
    main.style.overflowAnchor = holds ? "none" : ""; // which would scroll, too, but not from the top of the page
    if (holds) sized.observe(main);
    else sized.disconnect();
  };
  for (const type of ["pointerdown", "click", "focusin", "wheel"]) document.addEventListener(type, turn, { passive: true, capture: true });

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.timeline = {
    ask: ask,

    // The bar at a point of the window, the topmost one, as the server finds its event: y (px), event, and of a bin,
    // which stands for several, its ends (s). Of Plotly's points, idle time may be the closest, on top of which it is.
    mark: function (plot, { x: clientX, y: clientY }) {
      const { left, top } = plot.getBoundingClientRect(), { xaxis, yaxis } = plot._fullLayout;
      const time = xaxis.p2l(clientX - left - xaxis._offset), height = yaxis.p2l(clientY - top - yaxis._offset);
      let nearest = null, least = xaxis.p2l(NEAR) - xaxis.p2l(0);
      for (const { base, x, y, width, customdata } of plot._fullData) {
        if (!Array.isArray(customdata?.[0])) continue;
        for (let at = 0; at < x.length; at++) {
          const from = base[at], to = from + x[at], apart = Math.max(from - time, time - to, 0);
          if (apart > least || Math.abs(y[at] - height) > (width[at] ?? width) / 2) continue;
          const event = customdata[at][0];
          nearest = { y: y[at], event, ...(event < 0 && { ends: [from, to] }) };
          least = apart;
        }
      }
      return nearest;
    },

    // The part of the view that sums depend on, sent only if it has changed.
    summed: function (part, before) {
      const { runs, token, align, area, rows, rates } = part || {};
      const now = area ? { runs, token, align, area, rows, rates } : null;
      return JSON.stringify(now) === JSON.stringify(before ?? null) ? window.dash_clientside.no_update : now;
    },

    // Return the focus to a re-rendered button, or to the first one in its place.
    refocus: function () {
      const { ask: wish, holder } = pressed || {};
      window.setTimeout(() => {
        if (!holder || document.activeElement !== document.body) return;
        const buttons = [...holder.querySelectorAll("[data-ask]")];
        (buttons.find((button) => button.dataset.ask === wish) || buttons[0])?.focus();
      });
    },

    // The screen, sent only if more than the range has changed: everything off the time axis stays as it is.
    steady: function (screen, _, view, before) {
      const { range, ...part } = view || {};
      const now = { ...screen, part: part };
      return JSON.stringify(now) === JSON.stringify(before) ? window.dash_clientside.no_update : now;
    },

    // The part of the view that the texts depend on, sent only if it has changed.
    chosen: function (view, before) {
      const { range, theme, ...part } = view;
      window.dash_clientside.gestures.heed(range);
      return JSON.stringify(part) === JSON.stringify(before) ? window.dash_clientside.no_update : part;
    },
  };
})();
