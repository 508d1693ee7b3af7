// Elements that no callback changes, in one Dash component: see dashboard/pages/__init__.py.
(function () {
  const element = (tree) => {
    if (typeof tree === "string") return tree;
    const [tag, attributes, ...children] = tree;
    return window.React.createElement(tag, attributes, ...children.map(element));
  };
  window.intertoken = { Markup: ({ trees }) => window.React.createElement(window.React.Fragment, null, ...trees.map(element)) };
})();
