// Interaction with a page: show values, hide lines, zoom figures, sort tables. Without this script the page has all of
// its text and tables, but no figures.
"use strict";
(() => {
const PREFIXES = [[1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const UNITS = { ...Object.fromEntries(PREFIXES.map(([size, prefix]) => [prefix, size])), s: 1, min: 60, h: 3600, d: 86400 };

const make = (tag, attributes, parent) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent.append(element);
  return element;
};

// Data are stored as columns, which take a third of the space of rows.
function rowsOf(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, i) => Object.fromEntries(names.map(name => [name, columns[name][i]])));
}

// The view of a chart is a property of its element. With `ast`, Vega needs no eval, which the content policy forbids.
async function draw(element, look) {
  const spec = JSON.parse(element.querySelector("script").textContent);
  for (const name in spec.datasets) spec.datasets[name] = rowsOf(spec.datasets[name]);
  const options = { ast: true, renderer: "svg", actions: false, config: look };
  const { view } = await vegaEmbed(make("div", {}, element), spec, options);
  element.view = view;
  if ("over" in view.getState().signals) view.addSignalListener("over", () => zoomTo(view, {}));
  element.addEventListener("keydown", event => press(event, view));
}

// + and - zoom around the middle, arrows pan by a quarter, Escape resets.
function press(event, view) {
  const moved = { ArrowRight: [0.25, 0], ArrowLeft: [-0.25, 0], ArrowUp: [0, 0.25], ArrowDown: [0, -0.25] }[event.key];
  const factor = { "+": 0.5, "-": 2, Escape: null }[event.key];
  if ((!moved && factor === undefined) || !("zoom" in view.getState().signals)) return;
  event.preventDefault();
  const ranges = {};
  for (const { field, channel } of view.signal("zoom_tuple_fields")) {
    const [low, high] = view.scale(channel).domain(), by = moved?.[channel === "x" ? 0 : 1] ?? 0, size = high - low;
    const middle = low + size * (0.5 + by), half = size / 2 * (factor ?? 1);
    if (factor !== null) ranges[field] = [middle - half, middle + half];
  }
  zoomTo(view, ranges);
}

// Axes without a range show everything.
function zoomTo(view, ranges) {
  for (const { field } of view.signal("zoom_tuple_fields")) view.signal(`zoom_${field}`, ranges[field] ?? null);
  view.signal("zoom", ranges).runAsync();
}

// A name in a legend toggles its lines in all figures below.
function toggles(list) {
  const charts = [...list.nextElementSibling.querySelectorAll(".chart")], hidden = new Set();
  for (const item of list.children) {
    const name = item.textContent.trim();
    const button = make("button", { type: "button", "aria-pressed": "true" }, item);
    button.append(...[...item.childNodes].filter(node => node !== button));
    button.addEventListener("click", () => {
      const isOn = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", isOn);
      hidden[isOn ? "delete" : "add"](name);
      for (const { view } of charts) view?.signal("hidden", [...hidden]).runAsync();
    });
  }
}

// Returns the number of a cell, with its unit, without details in parentheses or small print; other text unchanged.
function sortKey(cell) {
  const text = (cell?.firstChild?.textContent ?? "").trim().replaceAll("−", "-").replaceAll(",", "");
  if (["", "–", "not a number", "infinite"].includes(text)) return null;
  const [, digits, unit] = text.match(/^([+-]?[\d.]+(?:e[+-]?\d+)?) ?([a-zA-Z]*)[*†%×]?(?= |$)/) ?? [];
  return Number(digits) * (UNITS[unit] ?? 1) || (digits && Number(digits) === 0 ? 0 : text);
}

function sortable(table) {
  const body = table.tBodies[0], rows = [...body.rows], headers = [...[...table.tHead.rows].at(-1).cells];
  if (rows.length < 2) return;
  headers.forEach((header, column) => {
    const title = header.firstChild?.nodeType === Node.TEXT_NODE && header.firstChild.textContent.trim();
    if (!title) return;
    const button = make("button", { type: "button" }, header);
    header.prepend(button);
    button.append(button.nextSibling);
    button.addEventListener("click", () => {
      const to = { ascending: "descending", descending: null }[header.getAttribute("aria-sort")];
      const order = to === undefined ? "ascending" : to;
      for (const each of headers) each.removeAttribute("aria-sort");
      if (order) header.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1, keys = new Map(rows.map(row => [row, sortKey(row.cells[column])]));
      const areNumbers = [...keys.values()].every(key => key === null || typeof key === "number");
      const compare = (a, b) => (areNumbers ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
      const sorted = [...rows].sort((one, other) => {
        const [a, b] = [keys.get(one), keys.get(other)];
        return a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b);
      });
      body.append(...(order ? sorted : rows));
    });
  });
}

document.querySelectorAll(".legend").forEach(toggles);
document.querySelectorAll("table.sortable").forEach(sortable);
for (const caption of document.querySelectorAll("figure details")) {
  const text = caption.previousElementSibling.getAttribute("aria-label");
  caption.addEventListener("toggle", () => { caption.querySelector("p").textContent = text; });
}
(async () => {
  const look = JSON.parse(document.getElementById("look").textContent);
  for (const element of document.querySelectorAll(".chart")) {
    await draw(element, { ...look, legend: { disable: true } }).catch(problem => console.error(String(problem)));
  }
  document.documentElement.dataset.drawn = "";
})();
})();
