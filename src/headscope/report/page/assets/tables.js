// Tables that sort by a click on a column, in pages; a search box where there is much to find.

// Text such that L2 comes before L10 when compared sign by sign; made once for each row.
const natural = (() => {
  const made = new Map();
  return (value) => {
    const text = String(value);
    if (!made.has(text)) made.set(text, text.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(8, "0")));
    return made.get(text);
  };
})();

function tableOf({ caption = "", columns, rows, page: size = 50, search = false, sort = null, onPick = null, rowClass = null }) {
  let order = sort;
  let shown = size;
  let words = "";
  let all = rows;
  const body = h("tbody");
  const more = button("", () => { shown += 4 * size; draw(); }, { class: "small" });
  const heads = columns.map((column) => {
    const name = button(column.title, () => {
      const down = order && order.key === column.key ? !order.down : Boolean(column.number) && !column.rising;
      order = { key: column.key, down };
      draw();
    }, { title: column.about || null });
    return h("th", { scope: "col", class: column.number ? "number" : null }, name);
  });
  const input = h("input", { type: "search", placeholder: "Find", "aria-label": `Find in ${caption || "the table"}` });
  on(input, "input", () => { words = input.value.trim().toLowerCase(); shown = size; draw(); });

  function chosen() {
    const found = words
      ? all.filter((row) => columns.some((column) => String(row[column.key]).toLowerCase().includes(words)))
      : all.slice();
    if (!order) return found;
    const { key, down } = order;
    const missing = (value) => value === null || value === undefined || value === "";
    // What is missing comes last, whichever way is up.
    return found.sort((a, b) => {
      const [x, y] = [a[key], b[key]];
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      const [p, q] = typeof x === "number" && typeof y === "number" ? [x, y] : [natural(x), natural(y)];
      const less = p < q ? -1 : p > q ? 1 : 0;
      return down ? -less : less;
    });
  }

  function cell(column, row) {
    const value = row[column.key];
    const text = column.show ? column.show(value, row) : some(value);
    return h("td", { class: column.number ? "number" : null }, text);
  }

  function draw() {
    const found = chosen();
    body.replaceChildren(...found.slice(0, shown).map((row) => {
      const line = h("tr", { class: rowClass ? rowClass(row) : null }, columns.map((column) => cell(column, row)));
      line.row = row;
      return line;
    }));
    heads.forEach((th, place) => {
      const sorted = order && order.key === columns[place].key;
      th.setAttribute("aria-sort", sorted ? (order.down ? "descending" : "ascending") : "none");
    });
    more.hidden = found.length <= shown;
    more.textContent = `Show more (${count(shown)} of ${count(found.length)} shown)`;
  }

  if (onPick) on(body, "click", (event) => {
    const line = event.target.closest("tr");
    if (line) onPick(line.row);
  });
  draw();
  const table = h("table", { class: onPick ? "picking" : null }, caption ? h("caption", {}, caption) : null,
    h("thead", {}, h("tr", {}, heads)), body);
  const element = h("div", { class: "table" }, search ? input : null,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || "Table" }, table), more);
  return {
    element,
    update(next) { all = next; shown = size; draw(); },
    mark() { for (const line of body.children) line.className = rowClass(line.row) || ""; },
  };
}

// Rows as they stand in a file, all columns.
function plainTable(caption, rows, names = {}) {
  if (!rows || rows.length === 0) return null;
  const columns = Object.keys(rows[0]).map((key) => {
    const number = rows.some((row) => typeof row[key] === "number");
    return { key, number, title: names[key] || key.replaceAll("_", " "), show: key === "task" || key === "function" ? titleOf : null };
  });
  return tableOf({ caption, columns, rows, page: 30 }).element;
}
