// Uploads: files chosen, or dropped anywhere on the page, are sent to the server in slices; a list shows the state of
// each. Names are inserted as text only.
(function () {
  const limit = () => Number(document.getElementById("page")?.dataset.uploadLimit || 0);
  const wait = (ms) => new Promise((resume) => window.setTimeout(resume, ms));

  const element = (kind, properties, parent) => parent.appendChild(Object.assign(document.createElement(kind), properties));

  // One request of an upload: retried if there is no answer; throws an Error with the server's message if rejected.
  async function ask(address, options) {
    for (let attempt = 1; ; attempt++) {
      try {
        const answer = await fetch(window.dash_clientside.intertoken.root() + address, options);
        const said = await answer.json().catch(() => ({}));
        if (!answer.ok) throw new Error(said.error || `The server answers ${answer.status}.`);
        return said;
      } catch (problem) {
        if (!(problem instanceof TypeError) || attempt === 4) throw problem;
        await wait(500 * 2 ** attempt);
      }
    }
  }

  async function send(file) {
    const row = element("li", {}, document.getElementById("uploads"));
    const name = file.name.length > 60 ? file.name.slice(0, 40) + "…" + file.name.slice(-19) : file.name;
    element("bdi", { textContent: name, className: "name" }, row);
    const progress = element("progress", { max: 1, value: 0, ariaLabel: `Upload of ${name}` }, row);
    const said = element("span", { role: "status" }, row);
    const button = element("button", { textContent: "Cancel", className: "button" }, row);
    const stop = new AbortController();
    button.onclick = () => stop.abort();
    let id;
    try {
      if (file.size > limit()) throw new Error(`has ${file.size.toLocaleString()} bytes; the limit is ${limit().toLocaleString()}.`);
      const fields = new URLSearchParams({ name: file.name, size: file.size });
      const begun = await ask(`upload?${fields}`, { method: "POST", signal: stop.signal });
      id = begun.id;
      let answer = { received: 0, run: null };
      while (answer.received < file.size) {
        const at = answer.received;
        if (at + begun.slice >= file.size) said.textContent = "is being read …";
        const body = file.slice(at, at + begun.slice);
        answer = await ask(`upload/${id}?at=${at}`, { method: "PUT", body: body, signal: stop.signal });
        progress.value = answer.received / file.size;
      }
      said.textContent = "is in the table. ";
      element("a", { textContent: "Show it", href: "?" + new URLSearchParams({ run: answer.run }) }, said);
      window.dash_clientside.intertoken.look();
    } catch (problem) {
      if (id) fetch(`${window.dash_clientside.intertoken.root()}upload/${id}`, { method: "DELETE" }).catch(() => null);
      if (stop.signal.aborted) return row.remove();
      said.textContent = problem instanceof TypeError ? "The server does not answer, or the file cannot be read." : problem.message;
      row.className = "failed";
    }
    progress.remove();
    Object.assign(button, { textContent: "Hide", onclick: () => row.remove() });
  }

  async function sendAll(files) {
    for (const file of files) await send(file);
  }

  document.addEventListener("click", (event) => {
    if (event.target.id !== "add") return;
    const chosen = Object.assign(document.createElement("input"), { type: "file", multiple: true });
    chosen.onchange = () => sendAll([...chosen.files]);
    chosen.click();
  });
  const isFile = (event) => limit() > 0 && document.getElementById("uploads") && event.dataTransfer?.types.includes("Files");
  const mark = (shown) => document.getElementById("page").classList.toggle("dropping", shown);
  document.addEventListener("dragover", (event) => {
    if (!isFile(event)) return;
    event.preventDefault();
    mark(true);
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || mark(false));
  document.addEventListener("drop", (event) => {
    if (!isFile(event)) return;
    event.preventDefault();
    mark(false);
    sendAll([...event.dataTransfer.files]);
  });
})();
