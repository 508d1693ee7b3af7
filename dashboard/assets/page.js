// What only the browser knows: the preferred theme, the width of the page, and the clipboard.
// A change of width or theme is sent to the page like a change of the view.
(function () {
  let waiting;
  const tell = () => {
    window.clearTimeout(waiting);
    waiting = window.setTimeout(() => {
      if (!document.getElementById("page")) return;
      const { screen, latest } = window.dash_clientside.intertoken;
      window.dash_clientside.set_props("screen", { data: screen(latest.view) });
    }, 150);
  };
  window.addEventListener("resize", tell);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
})();
// All pages load Plotly from the address of the first one; the renderer sets one below each page's own.
(function () {
  const file = document.querySelector("meta[name=plotly]").content;
  const address = new URL(`../_dash-component-suites/plotly/package_data/${file}`, document.currentScript.src).href;
  Object.defineProperty(window, "_dashPlotlyJSURL", { get: () => address, set: () => {} });
})();
// Enter in a table's cell follows its link, as the table would swallow the key.
window.dashAgGridFunctions = window.dashAgGridFunctions || {};
window.dashAgGridFunctions.followLink = function ({ event }) {
  const link = event.key === "Enter" && event.target.closest(".ag-cell")?.querySelector("a");
  if (link && event.type === "keydown") link.click();
  return Boolean(link);
};
// A name that is shortened in the middle, because names differ at their ends; the tooltip has all of it.
window.dashAgGridFunctions.middleCut = function (name, most) {
  if (typeof name !== "string" || name.length <= most) return name;
  const head = Math.floor(((most - 1) * 2) / 3);
  return `${name.slice(0, head)}…${name.slice(name.length - (most - 1 - head))}`;
};
// A call site without directories, FILE(LINE): FUNCTION; the tooltip has all of it.
window.dashAgGridFunctions.siteCut = function (site) {
  return typeof site === "string" ? site.replace(/^[^(]*\/(?=[^/]*\(\d+\): )/, "") : site;
};
// The rows selected by the reader; not sent when the table itself changes its selection as rows arrive.
window.dashAgGridFunctions.tellChoice = function ({ source, api }, tell) {
  const byReader = ["rowClicked", "checkboxSelected", "spaceKey"].includes(source);
  if (byReader) tell(api.getSelectedNodes().map((node) => node.id));
};
// A text that a spreadsheet would read as a formula gets an apostrophe in front; see without_formulas in tracer/text.py.
window.dashAgGridFunctions.withoutFormula = function ({ value, formatValue }) {
  if (typeof value !== "string") return formatValue(value);
  return /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
};
const LEGEND = 34; // px that the legend of a saved picture adds below
// A colour as the browser writes it; "" if it is none, as an array of them.
const asColour = (text) => {
  const { style } = document.createElement("i");
  style.color = typeof text === "string" ? text : "";
  return style.color;
};
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.intertoken = {
  latest: { view: null },

  // A new view: theme and width, the runs it names, and no failure shown. One call, as each costs a pass over the page.
  viewed: (view, named) => {
    const { screen, runsOf } = window.dash_clientside.intertoken;
    return [screen(view), runsOf(view, named), true];
  },
  // Set the theme, and send it with the width of the timeline.
  screen: function (view) {
    window.dash_clientside.intertoken.latest.view = view;
    const prefersDark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    const theme = (view && view.theme) || "auto";
    const scheme = theme === "auto" ? (prefersDark ? "dark" : "light") : theme;
    document.documentElement.dataset.theme = scheme;
    document.documentElement.dataset.agThemeMode = scheme;
    const button = document.getElementById("theme");
    if (button) button.textContent = scheme === "dark" ? "Light" : "Dark";
    const main = document.querySelector("main section");
    return { scheme: scheme, width: main ? main.clientWidth - 32 : window.innerWidth - 96 };
  },

  // Scroll the selected node of a graph into view.
  focus: function (place) {
    const holder = document.getElementById("canvas-holder");
    if (place && holder) {
      const { clientWidth: width, clientHeight: height, scrollLeft: x, scrollTop: y } = holder;
      if (place.y < y + 30 || place.y > y + height - 30) holder.scrollTop = place.y - height / 2;
      if (place.x < x + 90 || place.x > x + width - 90) holder.scrollLeft = place.x - width / 2;
    }
  },

  // Poll every two seconds for runs newer than this revision of the page.
  watch: function (revision) {
    const { latest, look } = window.dash_clientside.intertoken;
    latest.polls = latest.polls || window.setInterval(() => document.hidden || look(), 2000);
    latest.revision = revision ?? latest.revision;
  },
  // The table that the page opens with, and its revision.
  listed: function ([revision]) {
    const { latest } = window.dash_clientside.intertoken;
    latest.revision = latest.revision ?? revision;
  },
  look: async function () {
    const { latest, root, here } = window.dash_clientside.intertoken;
    const answer = await fetch(root() + "revision").catch(() => null);
    const old = answer?.status === 403;
    document.getElementById("offline").hidden = answer !== null;
    document.getElementById("old").hidden = !old;
    if (old) document.getElementById("log-in").href = `${root()}login?${new URLSearchParams({ next: here() })}`;
    if (!answer || !answer.ok) return;
    const { revision } = await answer.json();
    if (revision !== latest.revision) window.dash_clientside.set_props("revision", { data: revision });
  },
  // Copy the failure shown, with the address.
  copyFailure: async function () {
    const said = `${document.getElementById("failure-said").textContent}\n${window.location.href}`;
    try {
      await navigator.clipboard.writeText(said);
      return "Copied";
    } catch (refused) {
      return "The browser refused; select the text instead";
    }
  },
  root: () => document.getElementById("page").dataset.root,
  // The address of this view below the dashboard's root.
  here: function () {
    const { href, pathname, search } = window.location;
    const { root } = window.dash_clientside.intertoken;
    return pathname.slice(new URL(root(), href).pathname.length - 1) + search;
  },

  // The runs of the view, updated only when they change.
  runsOf: function (view, before) {
    const now = view?.runs ?? null;
    return JSON.stringify(now) === JSON.stringify(before ?? null) ? window.dash_clientside.no_update : now;
  },

  // Links to other pages keep the selected runs, their rates, the token and the theme.
  carry: function (search, ...links) {
    window.dash_clientside.intertoken.latest.search = search ?? "";
    const kept = new URLSearchParams([...new URLSearchParams(search)].filter(([name]) => ["run", "token", "theme", "rate", "basis"].includes(name)));
    return links.map((link) => link.split("?")[0] + (kept.size ? "?" + kept : ""));
  },

  // Save a figure on the page's surface colour, as its own background is transparent.
  save: async function () {
    const [, figure, format] = window.dash_clientside.callback_context.triggered_id.split("-");
    const plot = document.querySelector(`#${figure} .js-plotly-plot`);
    if (!plot) return;
    const surface = getComputedStyle(document.documentElement).getPropertyValue("--surface");
    const { margin } = plot._fullLayout, { clientWidth: width, clientHeight: height } = plot;
    const legend = { orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", itemsizing: "trace" };
    const layout = {
      ...plot.layout, paper_bgcolor: surface, plot_bgcolor: surface, width, height: height + LEGEND,
      margin: { ...plot.layout.margin, b: margin.b + LEGEND }, showlegend: true, legend,
    };
    const size = { width: width, height: height + LEGEND, scale: format === "png" ? 2 : 1 };
    const data = [...plot.data, ...window.dash_clientside.intertoken.legendOf(plot.data)];
    await window.Plotly.downloadImage({ data, layout }, { format: format, filename: `intertoken-${figure}`, ...size });
  },
  // A trace for each colour and pattern drawn, with no points but a place in the legend, by its name in that of the page.
  legendOf: function (data) {
    const names = new Map([...document.querySelectorAll(".legend li")].map((entry) => [asColour(entry.firstChild.style.background), entry.innerText]));
    const drawn = new Map();
    for (const { type, name, marker, x } of data) {
      if (marker?.color === "rgba(0,0,0,0)" || (Array.isArray(x) && !x.some(Boolean))) continue;
      const colour = asColour(marker?.pattern ? "" : marker?.color), place = /^idle (\w+)$/.exec(name)?.[1]?.replace("_", " the ");
      const called = place ? `idle ${place.replace("between the", "between")}` : names.get(colour) || (type === "bar" && colour && name);
      if (called && (place || colour)) drawn.set(called, { type: "bar", name: called, x: [null], y: [null], marker: { ...marker, opacity: 1 }, showlegend: true });
    }
    return [...drawn.values()];
  },

  // Copy a text when a button is pressed, which confirms it for a moment; false if the browser refuses.
  copy: async function (text, key, label) {
    try {
      await navigator.clipboard.writeText(text);
    } catch (refused) {
      return false;
    }
    const button = document.getElementById(key);
    button.textContent = "Copied";
    window.setTimeout(() => (button.textContent = label), 1500);
    return true;
  },
  go: (address) => window.location.assign(address),

  copyLink: async function () {
    const done = await window.dash_clientside.intertoken.copy(window.location.href, "copy-link", "Copy link");
    return done ? "Link copied" : "The browser refused; copy the address instead.";
  },
};
