// What a style sheet cannot do for print: fit figures to the paper, show all rows of tables, and print the
// view's address.
(function () {
  const WIDTH = 940, HEIGHT = 680; // px of A4 or Letter, lying
  const SMALLEST = 0.5; // a figure that would have to be smaller is cut
  const figures = () => [...document.querySelectorAll(".js-plotly-plot")].filter((plot) => plot.checkVisibility());
  const cell = (tag, text, kind) => {
    const made = document.createElement(tag);
    made.textContent = text ?? "";
    if (kind) made.className = kind;
    return made;
  };
  const row = (cells) => {
    const made = document.createElement("tr");
    made.append(...cells);
    return made;
  };
  // The columns that are not links, as shown; empty fields are not printed.
  const tableOf = (api) => {
    const raw = (column, node) => api.getCellValue({ rowNode: node, colKey: column });
    const isFilled = (column) => {
      let filled = !column.getColDef().editable;
      api.forEachNodeAfterFilterAndSort((node) => (filled = filled || Boolean(raw(column, node))));
      return filled;
    };
    const columns = api.getAllDisplayedColumns()
      .filter((c) => c.getColDef().field && c.getColDef().cellRenderer !== "markdown").filter(isFilled);
    const kind = (column) => (column.getColDef().type === "rightAligned" ? "number" : "");
    const made = cell("table", "", "figures printed");
    made.createTHead().append(row(columns.map((column) => cell("th", column.getColDef().headerName, kind(column)))));
    const body = made.createTBody();
    api.forEachNodeAfterFilterAndSort((node) => {
      const isRaw = ({ editable, tooltipField, field }) => editable || tooltipField === field; // not cut in its middle
      const value = (column) => isRaw(column.getColDef()) ? raw(column, node) : api.getCellValue({ rowNode: node, colKey: column, useFormatter: true });
      const line = row(columns.map((column) => cell("td", value(column), kind(column))));
      for (const told of line.cells) if (told.textContent.length > 24 && !told.className) told.className = "long";
      line.className = node.isSelected() ? "chosen" : "";
      body.append(line);
    });
    return made;
  };
  const clear = () => {
    document.querySelectorAll(".printed, .printed-address").forEach((part) => part.remove());
    document.querySelectorAll(".unprinted").forEach((part) => part.classList.remove("unprinted"));
  };

  window.addEventListener("beforeprint", () => {
    clear();
    for (const grid of document.querySelectorAll(".ag-root-wrapper")) {
      const holder = grid.closest("[id]:not(.ag-root-wrapper, .ag-root-wrapper *)");
      const api = window.dash_ag_grid?.getApi(holder.id);
      if (!api || !grid.checkVisibility()) continue;
      holder.after(tableOf(api));
      holder.classList.add("unprinted");
    }
    document.querySelector("#page > header")?.after(cell("p", window.location.href, "printed-address"));
    for (const plot of figures()) {
      window.Plotly.relayout(plot, { width: WIDTH, autosize: false });
      const holder = plot.closest(".dash-graph"), scale = HEIGHT / holder.offsetHeight;
      if (scale < 1) holder.style.zoom = Math.max(scale, SMALLEST);
    }
  });
  window.addEventListener("afterprint", () => {
    clear();
    for (const plot of figures()) {
      plot.closest(".dash-graph").style.zoom = "";
      window.Plotly.relayout(plot, { width: null, autosize: true });
    }
  });
})();
