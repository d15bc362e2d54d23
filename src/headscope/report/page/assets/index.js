// The list of runs that a server shows.

function indexSection(rows) {
  if (rows.length === 0) return h("p", { class: "empty" }, "There is no run in this folder yet. This page looks again by itself.");
  const shown = rows.map((run) => ({ ...run, kind: headline(run).kind, about: headline(run).about, took: duration(run.manifest),
    started: (run.manifest.started || "").replace("T", " ").replace(/\+00:00$/, " UTC"), count: run.files.length }));
  const columns = [
    { key: "name", title: "Run", show: (name, run) => h("a", { href: run.address }, name) }, { key: "kind", title: "Study" },
    { key: "about", title: "Models and tasks" }, { key: "state", title: "State", show: (state) => h("span", { class: `state ${state.replace(" ", "-")}` }, state) },
    { key: "started", title: "Started" }, { key: "took", title: "Took" },
    { key: "count", title: "Files", number: true, show: (number, run) => h("details", { class: "files" }, h("summary", {}, count(number)),
      run.files.map((file) => h("div", {}, h("a", { href: file.address }, file.name)))) },
  ];
  return h("section", { id: "index", class: "run" }, h("h2", {}, "Runs"),
    h("p", { class: "lead" }, "Read-only, to this machine only; a page follows its run while it goes on. ", h("a", { href: "/all" }, "All runs on one page")),
    h("div", { class: "card" }, tableOf({ caption: "Runs", columns, rows: shown, page: 200 }).element));
}
