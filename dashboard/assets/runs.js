// The table of all runs, folded into the strip of those that are shown.
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

  // A rate on a chip leads to its field in the table.
  document.addEventListener("click", ({ target }) => {
    const chip = target.closest("[data-rate]");
    const node = chip && grid()?.getRowNode(chip.dataset.rate);
    if (!node) return;
    window.dash_clientside.set_props("runs-panel", { hidden: unfold(true) });
    window.requestAnimationFrame(() => {
      grid().ensureNodeVisible(node);
      grid().ensureColumnVisible("rate");
      grid().startEditingCell({ rowIndex: node.rowIndex, colKey: "rate" });
    });
  });

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.runs = {
    // Whether the table is hidden: as its button was pressed, and open where there is no chip instead of it.
    fold: function (_, chipped) {
      const pressed = window.dash_clientside.callback_context.triggered.some(({ prop_id }) => prop_id.startsWith("runs-open"));
      return unfold(pressed ? !isOpen() : isOpen() || !(chipped && chipped[0]));
    },
  };
})();
