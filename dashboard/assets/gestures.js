// Wheel, touch, drag, keys and buttons move the timeline at once: what is drawn is shifted and stretched without a
// request. When the gesture ends, one request re-renders it with the range reached by then, so that nothing jumps. The
// link gets that range here. A slow wheel seems to end at each notch.
// Each move starts from the last target: the range requested, or the one that a press is still requesting.
(function () {
  const REST = 180; // ms without a movement, longer than between the notches of most wheels
  const QUICK = 100, QUICKLY = 1.8; // ms, and times the pause between its last movements: the rest of what moves steadily
  const LATER = 1.3, LONG = 360; // times the pause between its last notches, and ms at most: a rest of a slower wheel
  const PACE = 1000; // ms from one request to the next while a slow wheel goes on
  const MOST = 3, WINDOW = 2000; // requests of gestures in so many ms, the last of which is for their rest
  const LINKS = 600; // ms from the request for a drawing to the link with its range, which slow notches put off
  const PER_NOTCH = 0.0018, PER_PINCH = 0.01; // of a wheel's pixels: how much the range's logarithm changes
  const PATIENCE = 30000; // ms until something asked of the server counts as lost
  const SLACK = 4, APART = 10; // px: a press that moves less is none, fingers that are nearer do not pinch
  const SHORTEST = 1e-7, LONGEST = 1e5; // s
  const LINK = "link";
  const STEPS = { "zoom-in": [0.5, 0], "zoom-out": [2, 0], "pan-left": [1, -0.35], "pan-right": [1, 0.35] };
  const whole = (time) => Math.round(time * 1e9) / 1e9; // as the server says a whole number of ns
  let target = null, asked = null, viewed = null, resting = 0, frame = 0;
  let refined = [], moved_at = -LONG, linking = 0; // when gestures requested it lately, and when they moved it last
  let heard = {}; // how often each button had been pressed that the server has heeded, and what was asked of it last
  const owed = {}, later = []; // the same of what it has not answered yet, and the moves since

  const plotted = () => {
    const plot = document.querySelector("#timeline .js-plotly-plot");
    return plot?.data?.length && plot._fullLayout?._plots?.xy && plot.checkVisibility() ? plot : null;
  };
  const settled = () => (target = asked = null);
  const owing = () => Object.keys(owed).length > 0;
  const rest = () => {
    const now = performance.now(), apart = now - moved_at, is_slow = apart > REST && apart < LONG;
    moved_at = now;
    window.clearTimeout(linking);
    refined = refined.filter((at) => at > now - WINDOW);
    if (is_slow && refined.length === 1 && now - refined[0] > PACE) spend();
    const free = refined.length < MOST ? 0 : refined[0] + WINDOW - now;
    window.clearTimeout(resting);
    const steady = Math.min(Math.max(QUICKLY * apart, QUICK), REST);
    const pause = apart >= LONG ? REST : is_slow ? Math.min(LATER * apart, LONG) : steady;
    resting = window.setTimeout(spend, Math.max(pause, free));
  };
  const spend = () => {
    refined.push(performance.now());
    refine();
  };

  // Show the target by what was drawn for another range.
  const show = () => {
    frame = 0;
    const plot = plotted();
    if (!plot) return;
    const { xaxis } = plot._fullLayout, [low, high] = xaxis.range, [from, to] = target || [low, high];
    const { moving, minimap } = window.dash_clientside;
    minimap.frame([from, to]);
    const shift = ((low - from) / (to - from)) * xaxis._length, stretch = (high - low) / (to - from);
    if (!target || (Math.abs(shift) < 1e-6 && Math.abs(stretch - 1) < 1e-9)) moving.hide(plot);
    else moving.show(plot, [from, to]);
  };
  const soon = () => (frame = frame || window.requestAnimationFrame(show));

  const refine = () => {
    window.clearTimeout(resting);
    resting = 0;
    if (!target || later.length || !plotted()) return;
    asked = target;
    const { view } = window.dash_clientside.intertoken.latest;
    if (!view || !("range" in view)) return tell(asked);
    window.dash_clientside.set_props("view", { data: { ...view, range: asked.map((time) => Math.round(time * 1e9)) } });
  };
  // Before there is a view, the server makes one with this range.
  const tell = ([low, high]) => {
    const range = { "xaxis.range[0]": low, "xaxis.range[1]": high, at: performance.now() };
    window.dash_clientside.set_props("timeline", { relayoutData: range });
  };
  // The link with another range, in the place that dashboard/view.py gives it.
  const linked = (range) => {
    const parts = window.location.search.slice(1).split("&").filter((part) => part && !part.startsWith("range="));
    parts.splice(parts.findLastIndex((part) => /^(run|token|align)=/.test(part)) + 1, 0, `range=${range.join("..")}`);
    return `?${parts.join("&")}`;
  };
  // Not in the middle of a gesture, nor if something else has moved the timeline since, which changes the link itself.
  const link_at_rest = (range) => {
    const ends = range.map((time) => Math.round(time * 1e9));
    const is_still = () => ends.every((time, end) => time === window.dash_clientside.intertoken.latest.view?.range?.[end]);
    const link = () => window.dash_clientside.set_props("url", { search: linked(ends) });
    window.clearTimeout(linking);
    linking = window.setTimeout(() => owing() || !is_still() || link(), (refined.at(-1) ?? 0) + LINKS - performance.now());
  };

  // A request to the server may move the timeline: first send it the range reached by the gesture.
  const owe = (name, times) => {
    if (resting) refine();
    owed[name] = times;
    window.setTimeout(() => owed[name] === times && unanswered(name), PATIENCE);
  };
  const unanswered = (name) => {
    delete owed[name];
    later.length = 0;
    if (target) rest();
  };

  const attended = new WeakSet();
  const attend = (plot) => {
    if (attended.has(plot)) return;
    attended.add(plot);
    // A drag: the view follows later. A resize sends the same event, without a range.
    plot.on("plotly_relayout", (what) => Object.keys(what).some((key) => key.startsWith("xaxis")) && (viewed = null));
    const drawn = () => {
      const [low, high] = plot._fullLayout.xaxis.range;
      if (asked && asked === target && low === asked[0] && high === asked[1]) {
        if (window.dash_clientside.intertoken.latest.view?.range) link_at_rest(asked);
        settled();
      }
      window.dash_clientside.card.drawn(plot);
      window.dash_clientside.moving.drawn(plot);
      show();
      window.dash_clientside.ahead.drawn(plot, target);
    };
    plot.on("plotly_afterplot", drawn);
    drawn();
  };
  // The first drawing comes after Plotly has loaded.
  const await_plot = () => {
    const plot = plotted();
    if (plot) attend(plot);
    else window.requestAnimationFrame(await_plot);
  };

  // A range stretched by `factor` about `at`, a share of it, and shifted by `shift` of its width.
  const moved = ([low, high], [factor, at, shift]) => {
    const width = high - low, wide = Math.min(Math.max(width * factor, SHORTEST), LONGEST);
    const from = whole(low + (width - wide) * at + shift * width);
    return [from, whole(from + wide)];
  };
  const move = (plot, ...how) => {
    if (owing()) later.push(how);
    go(plot, moved(range(plot), how));
  };
  const range = (plot) => target || viewed || plot?._fullLayout.xaxis.range;
  const go = (plot, there) => {
    attend(plot);
    target = moved(there, [1, 0, 0]);
    window.dash_clientside.ahead.wait();
    window.dash_clientside.card.leave();
    rest();
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

  // Touch and mouse keep the pointer captured. Plotly gets no such presses.
  const held = new Map(); // where each is, px
  let dragged = false;
  const holds = (event) => {
    const drag = !event.shiftKey && !event.altKey && !event.ctrlKey && !event.metaKey && event.target.closest?.("#timeline .nsewdrag");
    return drag && plotted()?.layout.dragmode === "pan" ? drag : null;
  };
  const extent = () => {
    const at = [...held.values()], low = Math.min(...at), high = Math.max(...at);
    return { middle: (low + high) / 2, wide: high - low };
  };
  document.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !holds(event)) return;
    if (!held.size) dragged = false;
    held.set(event.pointerId, event.clientX);
  }, true);
  document.addEventListener("pointermove", (event) => {
    const plot = held.has(event.pointerId) && plotted();
    if (!plot || (!dragged && Math.abs(event.clientX - held.get(event.pointerId)) < SLACK)) return;
    if (!dragged) event.target.setPointerCapture?.(event.pointerId);
    dragged = true;
    const before = extent();
    held.set(event.pointerId, event.clientX);
    const after = extent(), { xaxis } = plot._fullLayout;
    const factor = Math.min(before.wide, after.wide) > APART ? before.wide / after.wide : 1;
    const at = (before.middle - plot.getBoundingClientRect().left - xaxis._offset) / xaxis._length;
    move(plot, factor, at, ((before.middle - after.middle) / xaxis._length) * factor);
  }, true);
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, ({ pointerId }) => held.delete(pointerId), true);
  document.addEventListener("touchstart", (event) => holds(event) && event.stopPropagation(), { passive: true, capture: true });
  document.addEventListener("mousedown", (event) => {
    if (event.button !== 0 || !holds(event)) return;
    event.stopPropagation();
    event.preventDefault(); // which would select words, or drag them
    document.activeElement?.blur();
  }, true);

  // Moves made since something was asked, from the view that answers it.
  const again = () => {
    const plot = plotted();
    if (owing() || !later.length || !plot) return;
    target = later.splice(0).reduce(moved, viewed || plot.layout.meta.usual);
    asked = null;
    rest();
    soon();
  };
  // The browser's back and forward: another link, whose view the server will answer.
  window.addEventListener("popstate", () => {
    const { search } = window.location;
    if (search === window.dash_clientside.intertoken.latest.search) return; // a place in the page
    if (document.getElementById("chips")) window.dash_clientside.set_props("followed", { data: search });
    if (!plotted()) return;
    window.clearTimeout(resting);
    resting = 0;
    settled();
    owe(LINK, 1);
  });

  // The zoom and pan buttons, which the keys press, too.
  document.addEventListener("click", (event) => {
    const key = event.target.closest("button")?.id, step = STEPS[key], plot = plotted();
    if (step && plot) {
      event.stopPropagation();
      move(plot, step[0], 0.5, step[1]);
    } else if (key in heard) owe(key, (owed[key] ?? heard[key] ?? 0) + 1);
  }, true);

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.gestures = {
    // A view with a range other than the requested one comes from elsewhere, and wins.
    heed: function (range) {
      viewed = range && range.map((time) => time / 1e9); // which may not be drawn yet
      if (LINK in owed) {
        delete owed[LINK];
        again();
      }
      if (resting || owing() || !asked) return;
      if (!range || range[0] !== Math.round(asked[0] * 1e9) || range[1] !== Math.round(asked[1] * 1e9)) settled();
    },

    // What the server has handled: moves made meanwhile start from its answer.
    heard: function (pressed, view) {
      heard = pressed || {};
      for (const name of Object.keys(owed)) if ((heard[name] ?? 0) >= owed[name]) delete owed[name];
      window.dash_clientside.gestures.heed(view?.range);
      again();
    },
    owe: owe,
    heeded: (name) => heard[name] ?? 0,
    drawn: function (runs) {
      window.dash_clientside.card.forget();
      if (runs?.length > 1) await_plot(); // beside the theme
    },
    dragged: () => dragged, // since the last press
    moves: () => Boolean(target || later.length || owing() || held.size), // or will soon
    plotted: plotted,
    range: () => range(plotted()),
    go: (there) => {
      later.length = 0;
      if (plotted()) go(plotted(), there);
    },
  };
})();
