// The page itself: its head, a section per run, and the choice of light or dark.

const SECTIONS = { heads: headSection, edges: edgeSection, roles: roleSection, functions: functionSection, "sparsify-report": sparsitySection };

function themeButton() {
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const made = button("", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("headscope-theme", document.documentElement.dataset.theme); } catch { /* pages from disk may have no storage */ }
    told();
  }, { class: "small", id: "theme" });
  const told = () => { made.textContent = dark() ? "Light" : "Dark"; made.setAttribute("aria-label", `Use ${dark() ? "light" : "dark"} colours`); };
  try { const kept = localStorage.getItem("headscope-theme"); if (kept) document.documentElement.dataset.theme = kept; } catch { /* as above */ }
  told();
  return made;
}

function notesOf(run) {
  if (run.notes.length === 0) return null;
  return h("div", { class: "notes", role: "note" }, h("strong", {}, `${plural(run.notes.length, "file")} of this run could not be shown`), h("ul", {}, run.notes.map((note) => h("li", {}, note))));
}

// What was found, before any control.
const foundOf = (run) => ((run.found || []).length ? h("p", { class: "found" }, run.found.join(" ")) : null);

// Figures that the page does not draw by itself.
function picturesOf(run) {
  const pictures = Object.entries(run.pictures);
  return pictures.length ? h("div", { class: "grid" }, pictures.map(([name, data]) => figureOf(name, { run, names: [name] }, h("img", { class: "picture", src: data, alt: name })))) : null;
}

function runSection(run, place) {
  const { kind, about } = headline(run);
  let content;
  try {
    content = SECTIONS[run.command] ? SECTIONS[run.command](run) : Object.entries(run.tables).map(([name, rows]) => plainTable(name, rows));
  } catch (error) {
    run.notes.push(`The figures could not be drawn: ${error.message}`);
    content = null;
  }
  const manifest = JSON.stringify(run.manifest, null, 2);
  return h("section", { id: `run-${place}`, class: "run", "aria-label": `${kind}: ${run.name}` },
    h("h2", {}, kind, " ", h("span", { class: "about" }, about)),
    h("p", { class: "small-words" }, h("span", { class: `state ${run.state.replace(" ", "-")}` }, run.state), ` ${run.folder}`),
    notesOf(run), foundOf(run), content, run.line ? commandLine(run.line) : null, picturesOf(run),
    h("details", {}, h("summary", {}, "Manifest"), copyButton(manifest, "Copy manifest"), run.line ? commandLine(run.figure_line) : null, h("pre", { tabindex: "0" }, manifest)));
}

const links = page.runs.map((run, place) => h("a", { href: `#run-${place}`, title: run.name }, headline(run).kind, h("small", {}, run.name)));
document.getElementById("top").append(
  h("div", { class: "brand" }, h("span", { class: "mark", "aria-hidden": "true" }, "◉"), h("h1", {}, page.title || "Headscope")),
  page.index ? h("nav") : h("nav", { "aria-label": "Runs" }, page.live ? h("a", { href: "/" }, "All runs") : null, page.extra ? h("a", { href: "#published" }, "Published") : null, h("a", { href: "#overview" }, "Overview"), links), themeButton());
document.getElementById("content").replaceChildren(...[...(page.index ? [indexSection(page.index)] : [published(page.extra), overview(), ...page.runs.map(runSection)]),
  h("footer", {}, "Made by Headscope from run folders. Nothing on this page is fetched from anywhere.")].filter(Boolean));
document.documentElement.dataset.ready = "yes";
