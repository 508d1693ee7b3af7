// All that is known about the event under the pointer: once the pointer rests on a bar, it is asked of the server, which
// says what a click on the bar would show, and stands in a card beside the pointer. Plotly's label, with the name and
// the duration, is there at once and gives way to it.
(function () {
  const REST = 150; // ms without a movement
  const AGAIN = 600; // ms until what was still being computed is asked for again
  const BESIDE = 14, EDGE = 8; // px from the pointer, and least from the window's edges
  const MOST = 500; // answers kept
  const pointer = { x: 0, y: 0 };
  const known = new Map(); // answers by bar and drawing
  // The one under the pointer: its plot and where that was in the window, its key and mark, whether it was asked for, and
  // whether its card is unwanted.
  let bar = null;
  let resting = 0;

  const place = (card) => {
    const { width, height } = card.getBoundingClientRect(), { clientWidth, clientHeight } = document.documentElement;
    const along = (at, size, room) => {
      const after = at + BESIDE + size <= room - EDGE, wanted = after ? at + BESIDE : at - BESIDE - size;
      return Math.max(Math.min(wanted, room - EDGE - size), EDGE);
    };
    card.style.translate = `${along(pointer.x, width, clientWidth)}px ${along(pointer.y, height, clientHeight)}px`;
  };
  // The card is seen while what it says is about the bar under the pointer.
  const settle = () => {
    const card = document.getElementById("card"), said = card.firstElementChild;
    const seen = bar?.asked && said?.dataset.of === bar.key && said.childElementCount > 0;
    card.classList.toggle("seen", Boolean(seen));
    document.getElementById("timeline").classList.toggle("told", Boolean(seen));
    if (seen) place(card);
  };
  // What it says is rendered later than it is set.
  const rendered = new MutationObserver(settle);
  const observe = () => {
    const card = document.getElementById("card");
    card.inert = true;
    rendered.observe(card, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["data-of"] });
  };
  const leave = () => {
    window.clearTimeout(resting);
    if (bar === null) return;
    bar = null;
    settle();
  };
  // Not before the pointer is at another bar.
  const dismiss = () => {
    window.clearTimeout(resting);
    if (bar === null) return;
    Object.assign(bar, { asked: false, unwanted: true });
    settle();
  };
  const show = ({ said }) => {
    window.dash_clientside.set_props("card", { children: said });
    settle();
  };
  const rest = () => {
    window.clearTimeout(resting);
    resting = window.setTimeout(ask, REST);
  };
  const ask = () => {
    if (window.dash_clientside.gestures.moves()) return rest();
    bar.asked = true;
    if (known.has(bar.key)) return show(known.get(bar.key));
    window.dash_clientside.set_props("pointed", { data: { ...bar.mark, key: bar.key, at: performance.now() } });
  };

  const top_of = (plot) => plot.getBoundingClientRect().top;
  const over = (plot) => {
    const hit = window.dash_clientside.timeline.mark(plot, pointer), mark = hit && { ...hit, part: plot.layout.meta.part };
    const key = JSON.stringify(mark);
    if (bar?.key !== key) leave();
    if (!mark) return;
    bar = bar ?? { plot, top: top_of(plot), key, mark, asked: false, unwanted: false };
    if (bar.asked) return settle();
    if (!bar.unwanted) rest();
  };
  document.addEventListener("pointermove", ({ target, clientX, clientY, pointerType, buttons }) => {
    const plot = pointerType !== "touch" && !buttons && target.closest?.("#timeline .nsewdrag") && window.dash_clientside.gestures.plotted();
    if (!plot) return leave();
    if (clientX === pointer.x && clientY === pointer.y) return; // the browser's own, after something was drawn
    Object.assign(pointer, { x: clientX, y: clientY });
    over(plot);
  }, true);
  document.addEventListener("pointerout", ({ relatedTarget }) => relatedTarget || leave(), true); // it left the window
  document.addEventListener("pointerdown", dismiss, true);
  document.addEventListener("keydown", ({ key }) => key === "Escape" && dismiss(), true);
  document.addEventListener("wheel", leave, { passive: true, capture: true });
  // Not if something else scrolls, or the page to keep the timeline in its place.
  document.addEventListener("scroll", () => bar === null || top_of(bar.plot) === bar.top || leave(), { passive: true, capture: true });

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.card = {
    leave: leave,
    // It was drawn anew: the bar under the pointer may be another.
    drawn: (plot) => bar === null || over(plot),
    // Other recordings, or read again: what was said may be wrong.
    forget: () => known.clear(),
    // An answer, which may be late: of another bar it is kept for later.
    told: function (answer) {
      if (!answer) return;
      observe();
      const { key, pending } = answer;
      if (!pending) {
        if (known.size >= MOST) known.clear();
        known.set(key, answer);
      }
      if (bar?.key !== key || !bar.asked) return;
      show(answer);
      if (pending) resting = window.setTimeout(ask, AGAIN);
    },
  };
})();
