// The timeline while it moves: what is drawn is collected once, and painted on a canvas in each frame, shifted and
// stretched. As SVG, each frame would cost style, layout and painting of every mark.
(function () {
  const CROWDED = 0.7; // stretched by less, the texts of marks would overlap
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  canvas.className = "moving-marks";
  let picture = null; // what was collected of the drawing that is shown

  // How a node is painted. Many nodes share their style, so that few are computed.
  const looks = new Map();
  const look_of = (node) => {
    const inner = node.querySelector("tspan") || node;
    const key = [node.tagName, node.getAttribute("text-anchor"), node.getAttribute("style"), inner.getAttribute("style")].join();
    if (!looks.has(key)) {
      const style = getComputedStyle(inner), width = parseFloat(style.strokeWidth), opacity = Number(style.opacity);
      const filled = style.fill === "none" ? 0 : opacity * style.fillOpacity, lined = style.stroke === "none" || !width ? 0 : opacity * style.strokeOpacity;
      const align = { middle: "center", end: "end" }[style.textAnchor] || "start";
      const font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
      looks.set(key, { fill: fill_of(style.fill), filled, line: style.stroke, lined, width, dash: style.strokeDasharray, font, align });
    }
    return looks.get(key);
  };
  const fill_of = (fill) => {
    const name = fill.match(/^url\("?#(.+?)"?\)/)?.[1];
    return name ? tile(document.getElementById(name)) : fill;
  };

  // A pattern of SVG as one of the canvas.
  const tile = (pattern) => {
    const own = document.createElement("canvas"), [wide, tall] = ["width", "height"].map((side) => parseFloat(pattern.getAttribute(side)));
    const ratio = window.devicePixelRatio, { left, top } = picture;
    Object.assign(own, { width: Math.round(wide * ratio), height: Math.round(tall * ratio) });
    const pen = own.getContext("2d");
    pen.scale(own.width / wide, own.height / tall);
    for (const node of pattern.children) {
      const value = (name) => parseFloat(node.getAttribute(name) ?? (name.endsWith("opacity") ? 1 : 0)), path = new Path2D(node.getAttribute("d") ?? "");
      if (node.tagName === "rect") path.rect(0, 0, wide, tall);
      if (node.tagName === "circle") path.arc(value("cx"), value("cy"), value("r"), 0, 2 * Math.PI);
      const { fill, stroke } = getComputedStyle(node);
      Object.assign(pen, { fillStyle: fill, strokeStyle: stroke, lineWidth: value("stroke-width"), globalAlpha: value("fill-opacity") * value("opacity") });
      if (fill !== "none") pen.fill(path);
      if (stroke !== "none") pen.stroke(path);
    }
    const made = pen.createPattern(own, "repeat");
    made.setTransform(new DOMMatrix().translate(left, top).scale(wide / own.width, tall / own.height));
    return made;
  };

  // Where the nodes stand in the drawing: bars as [from, to, top, bottom], the rest as paths and texts. Those with an
  // `x` keep their width.
  const collect = (plot) => {
    const { xaxis, yaxis, annotations, shapes } = plot._fullLayout, left = xaxis._offset, top = yaxis._offset;
    looks.clear();
    picture = { plot, left, top, wide: xaxis._length, tall: yaxis._length, range: xaxis.range, rects: new Map(), below: [], marks: [], above: [], kept: [] };
    const base = plot.querySelector(".main-svg").getScreenCTM().inverse();
    const placed = (node) => base.multiply(node.getScreenCTM());
    const path = (node, x) => {
      const made = new Path2D();
      made.addPath(new Path2D(node.getAttribute("d")), placed(node));
      return { path: made, x, look: look_of(node) };
    };
    const text = (node, x) => {
      const at = new DOMPoint(...["x", "y"].map((name) => Number(node.getAttribute(name)))).matrixTransform(placed(node));
      return { text: node.textContent, x, beside: at.x - x, y: at.y, look: look_of(node) };
    };
    const box = (node) => {
      const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(node.getAttribute(name))), { e, f } = placed(node);
      return [x + e, y + f, width, height];
    };
    const px = (time) => left + xaxis.l2p(time);
    for (const node of plot.querySelectorAll(".barlayer path")) {
      const look = look_of(node), [from, y0, y1, to] = node.getAttribute("d").match(/-?[\d.]+(e-?\d+)?/g).map(Number);
      picture.rects.set(look, picture.rects.get(look) || []);
      picture.rects.get(look).push(from + left, to + left, Math.min(y0, y1) + top, Math.max(y0, y1) + top);
    }
    for (const node of plot.querySelectorAll(".scatterlayer path:not(.point)")) picture.marks.push(path(node));
    for (const node of plot.querySelectorAll(".scatterlayer .point")) picture.marks.push(path(node, placed(node).e));
    for (const node of plot.querySelectorAll(".scatterlayer text")) picture.marks.push(text(node, px(node.parentNode.__data__.x)));
    shapes.forEach(({ xref, layer }, index) => {
      if (xref !== "x") return;
      for (const node of plot.querySelectorAll(`.shapelayer [data-index="${index}"]`)) {
        node.classList.add("on-canvas");
        picture[layer === "below" ? "below" : "marks"].push(path(node));
      }
    });
    annotations.forEach(({ xref, x, axref }, index) => {
      const at = px(x), stretched = axref === "x";
      for (const node of plot.querySelectorAll(`.annotation[data-index="${index}"]`)) {
        if (xref !== "x") {
          picture.kept.push(box(node.querySelector("rect.bg")));
          continue;
        }
        node.classList.add("on-canvas");
        node.querySelectorAll(".annotation-arrow-g path").forEach((part) => picture.above.push(path(part, stretched ? undefined : at)));
        for (const ground of node.querySelectorAll("rect.bg")) {
          const made = new Path2D();
          made.rect(...box(ground));
          picture.above.push({ path: made, x: at, look: look_of(ground) });
        }
        for (const words of node.querySelectorAll("text")) picture.above.push(text(words, at));
      }
    });
    picture.grid = row(plot, "path.xgrid", ".xtick > text", "path.xtick", "path.xzl");
  };
  // The looks of the axis, of its first line and text each.
  const row = (plot, ...names) => names.map((name) => {
    const node = plot.querySelector(name);
    return node && { look: look_of(node), y: Number(node.getAttribute("y")), d: node.getAttribute("d") };
  });

  // A range's labels, as the server will draw them.
  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const ticks = ([from, to], most) => {
    let step = 10 ** Math.max(Math.floor(Math.log10(((to - from) * 1e9) / most)), 0);
    step *= [1, 2, 5, 10].find((times) => ((to - from) * 1e9) / (step * times) <= most);
    const [unit, name] = UNITS.find(([unit]) => step >= unit), labels = [];
    for (let at = Math.ceil((from * 1e9) / step) * step; at <= to * 1e9; at += step) {
      labels.push([at / 1e9, at ? `${(at / unit).toLocaleString("en-US")} ${name}`.replace("-", "−") : "0"]);
    }
    return labels;
  };

  // From the px of the drawing to those of the frame, and what is outside of it.
  let stretch = 1, shift = 0;
  const moved = (x) => picture.left + shift + (x - picture.left) * stretch;
  const outside = (x) => x < picture.left || x > picture.left + picture.wide;

  const paint_rects = (look, all) => {
    const { left, wide } = picture, least = left - 9, most = left + wide + 9;
    const framed = look.lined && look.line !== look.fill, grown = look.lined ? (framed ? -0.5 : 0.5) * look.width : 0;
    Object.assign(context, { fillStyle: look.fill, globalAlpha: look.filled, strokeStyle: look.line, lineWidth: look.width });
    for (let at = 0; at < all.length; at += 4) {
      const from = Math.max(moved(all[at]), least), to = Math.min(moved(all[at + 1]), most), top = all[at + 2], bottom = all[at + 3];
      if (to < from || from > most || to < least) continue;
      if (to - from + 2 * grown > 0) context.fillRect(from - grown, top - grown, to - from + 2 * grown, bottom - top + 2 * grown);
      if (framed) context.strokeRect(from, top, to - from, bottom - top);
    }
  };
  const paint = ({ path, text, x, beside, y, look }) => {
    if (x !== undefined && outside(moved(x))) return;
    const { fill, filled, line, lined, width, dash, font, align } = look;
    Object.assign(context, { fillStyle: fill, globalAlpha: filled, strokeStyle: line, lineWidth: width });
    if (text !== undefined) {
      Object.assign(context, { font, textAlign: align });
      return context.fillText(text, moved(x) + beside, y);
    }
    const there = new Path2D();
    there.addPath(path, x === undefined ? new DOMMatrix([stretch, 0, 0, 1, moved(0), 0]) : new DOMMatrix([1, 0, 0, 1, moved(x) - x, 0]));
    if (filled) context.fill(there);
    if (!lined) return;
    context.globalAlpha = lined;
    context.setLineDash(dash === "none" ? [] : dash.split(",").map(parseFloat));
    context.stroke(there);
  };
  const paint_line = (kind, x) => {
    if (!kind?.d || outside(x)) return;
    const { look: { line, lined, width }, d } = kind, whole = width % 2 ? Math.floor(x) + 0.5 : Math.round(x);
    const there = new Path2D();
    there.addPath(new Path2D(d), new DOMMatrix([1, 0, 0, 1, whole, 0]));
    Object.assign(context, { strokeStyle: line, globalAlpha: lined, lineWidth: width });
    context.setLineDash([]);
    context.stroke(there);
  };

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.moving = {
    // Show a range by what is drawn for another.
    show: function (plot, [from, to]) {
      const ratio = window.devicePixelRatio, { clientWidth, clientHeight } = plot;
      if (picture?.plot !== plot) collect(plot);
      const [low, high] = picture.range, { left, wide, top, tall, rects, below, marks, above, kept, grid } = picture;
      const [line, label, tick, zero] = grid, place = (time) => left + ((time - from) / (to - from)) * wide;
      [stretch, shift] = [(high - low) / (to - from), ((low - from) / (to - from)) * wide];
      const holder = plot.querySelector(".svg-container");
      if (canvas.parentNode !== holder) holder.append(canvas);
      const size = [clientWidth, clientHeight].map((side) => Math.round(side * ratio));
      if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
      canvas.style.width = `${clientWidth}px`;
      canvas.style.height = `${clientHeight}px`;
      plot.classList.add("moving");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, clientWidth, clientHeight);
      context.save();
      context.beginPath();
      context.rect(left, top, wide, tall);
      context.clip();
      below.forEach(paint);
      const labels = ticks([from, to], Math.max(Math.floor(wide / 120), 4));
      for (const [time] of labels) if (time) paint_line(line, place(time));
      paint_line(zero, place(0));
      window.dash_clientside.ahead.paint(context, plot, place);
      for (const [look, all] of rects) paint_rects(look, all);
      for (const each of marks) if (each.text === undefined || stretch >= CROWDED) paint(each);
      context.restore();
      for (const [time, text] of labels) {
        const x = place(time);
        paint_line(tick, x);
        if (!label) continue;
        Object.assign(context, { fillStyle: label.look.fill, globalAlpha: label.look.filled, font: label.look.font, textAlign: "center" });
        context.fillText(text, x, label.y);
      }
      for (const box of kept) context.clearRect(...box); // where headings stand
      above.forEach(paint);
    },
    // The drawing is the range's own.
    hide: function (plot) {
      if (plot.classList.contains("moving")) window.Plotly.Fx.unhover(plot); // it belonged to the earlier drawing
      plot.classList.remove("moving");
      canvas.remove();
    },
    // It was drawn anew. What a gesture will need is collected before it begins, when the browser has time.
    drawn: function (plot) {
      picture = null;
      window.requestIdleCallback?.(() => picture || !plot.isConnected || collect(plot));
    },
  };
})();
