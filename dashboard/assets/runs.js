// The table of all runs, folded into the strip of the selected ones.
(function () {
  const button = () => document.getElementById("runs-open");
  const isOpen = () => button()?.getAttribute("aria-expanded") === "true";
  const grid = () => window.dash_ag_grid?.getApi("runs");

  const unfold = (open) => {
    button().setAttribute("aria-expanded", String(open));
    const panel = document.getElementById("runs-panel");
    panel.hidden = !open;
    const chosen = open && grid()?.getSelectedNodes()[0];
    if (chosen) grid().ensureNodeVisible(chosen, "top");
    return !open;
  };

  const show = (open) => window.dash_clientside.set_props("runs-panel", { hidden: unfold(open) });

  // The button, and a rate on a chip, which leads to its field in the table.
  document.addEventListener("click", ({ target }) => {
    if (target.closest("#runs-open")) return show(!isOpen());
    const chip = target.closest("[data-rate]");
    const node = chip && grid()?.getRowNode(chip.dataset.rate);
    if (!node) return;
    show(true);
    edit(node, 40);
  });

  // Edit the rate of a run as soon as the table, which may have been folded, has rendered its row.
  const edit = (node, frames) => {
    grid().ensureNodeVisible(node);
    grid().ensureColumnVisible("rate");
    grid().startEditingCell({ rowIndex: node.rowIndex, colKey: "rate" });
    const field = document.querySelector("#runs .ag-cell-inline-editing input");
    if (field) field.focus();
    else if (frames) window.requestAnimationFrame(() => edit(node, frames - 1));
  };

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.runs = {
    // Whether the table is hidden: it is open if there are no chips.
    fold: (chipped) => unfold(isOpen() || !(chipped && chipped[0])),
  };
})();
