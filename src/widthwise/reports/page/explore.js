// What a reader can do with a page beyond reading it: see values, hide lines, enlarge figures, sort tables. All that
// there is to read is in the page without this.
"use strict";
(() => {
const PREFIXES = [[1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const UNITS = { ...Object.fromEntries(PREFIXES.map(([size, prefix]) => [prefix, size])), s: 1, min: 60, h: 3600, d: 86400 };
const NEAR = 30, FEWEST_DRAGGED = 8;  // in units of a figure, of which a line of text takes ten

const make = (tag, attributes, parent) => {
  const element = document.createElementNS(parent.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent.append(element);
  return element;
};
const tip = make("div", { class: "tip", role: "status", hidden: "" }, document.body);
// Browsers also tell of a pointer that rests while the page moves below it.
let hand = "", isMoved = true;
const placeOf = ({ clientX, clientY }) => `${clientX} ${clientY}`;
addEventListener("pointermove", event => {
  isMoved = hand !== placeOf(event);
  hand = placeOf(event);
}, true);

function shown(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en").replace("-", "−");
  const [size, prefix] = (Math.abs(value) >= 1e7 && PREFIXES.find(([least]) => Math.abs(value) >= least)) || [1, ""];
  const digits = Math.abs(value) < 1e-4 ? value.toExponential(3) : String(Number((value / size).toPrecision(5)));
  return digits.replaceAll("-", "−") + prefix;
}

// An axis as reports/page/inline.py tells it. Numbers on it are those of its scale; `low` and `high` follow the zoom.
class Axis {
  constructor(told) { Object.assign(this, told, { all: [told.low, told.high] }); }
  get factor() { return (this.end - this.start) / (this.high - this.low); }
  get isZoomed() { return this.low !== this.all[0] || this.high !== this.all[1]; }
  place(number) { return this.start + (number - this.low) * this.factor; }
  number(place) { return this.low + (place - this.start) / this.factor; }
  holds(number) { return (number - this.low) * (number - this.high) <= 1e-9 * (this.high - this.low) ** 2; }
  text(number) {
    const far = ([at]) => Math.abs(at - number);
    if (this.labels?.length) return this.labels.reduce((best, each) => (far(each) < far(best) ? each : best))[1];
    const value = this.log ? 10 ** number : number * this.unit;
    return shown(Math.abs(value - Math.round(value)) < 1e-6 * Math.abs(value) ? Math.round(value) : value);
  }
  narrow(from, to) {
    const [low, high] = this.all, [first, last] = (from < to) === (low < high) ? [from, to] : [to, from];
    const within = value => Math.min(Math.max(value, Math.min(low, high)), Math.max(low, high));
    if (!this.labels && Math.abs(within(last) - within(first)) > 1e-6 * Math.abs(high - low)) {
      [this.low, this.high] = [within(first), within(last)];
    }
  }
  move() {  // factor and offset from where something was drawn to where it is now
    const factor = (this.all[1] - this.all[0]) / (this.high - this.low);
    return [factor, this.place(this.all[0]) - factor * this.start];
  }
  ticks() {
    const least = Math.abs(this.high - this.low) / 5, power = 10 ** Math.floor(Math.log10(least));
    const step = power * [1, 2, 5, 10].find(each => each * power >= least), found = [];
    const [low, high] = [Math.min(this.low, this.high), Math.max(this.low, this.high)];
    for (let i = Math.ceil(low / step); i <= high / step; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  }
}

class Figure {
  constructor(svg) {
    const axes = JSON.parse(svg.dataset.axes);
    Object.assign(this, { svg, x: new Axis(axes.x), y: new Axis(axes.y), at: null });
    this.ring = make("circle", { class: "ring", r: 4.5, visibility: "hidden" }, svg);
    this.marks = [...svg.querySelectorAll("[data-name]")].flatMap(group => this.marksOf(group));
    svg.addEventListener("pointermove", event => this.point(event));
    svg.addEventListener("pointerleave", event => placeOf(event) === hand || this.show(null));
    svg.addEventListener("pointerdown", event => this.grasp(event));
    svg.addEventListener("pointerup", event => this.release(event));
    svg.addEventListener("dblclick", () => this.zoom());
    svg.addEventListener("keydown", event => this.press(event));
    svg.addEventListener("blur", () => this.show(null));
  }
  marksOf(group) {
    const numbers = group.querySelector("path.numbers")?.getAttribute("d").match(/[^M ]+/g)?.map(Number);
    if (numbers) return numbers.flatMap((x, i) => (i % 2 ? [] : [{ group, x, y: numbers[i + 1] }]));
    if (!group.classList.contains("area")) return [];
    const box = group.getBBox();
    const x = this.x.number(box.x + box.width / 2), y = this.y.number(box.y + box.height / 2);
    return [{ group, x, y, isArea: true }];
  }
  get seen() {
    return this.marks.filter(({ group, x, y }) => !group.classList.contains("off") && this.x.holds(x) && this.y.holds(y));
  }
  place(event) {
    const box = this.svg.getBoundingClientRect(), scale = this.svg.viewBox.baseVal.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  }
  point(event) {
    if (!isMoved) return;
    const [x, y] = this.place(event);
    if (this.from) return this.drag(x, y);
    const area = event.target.closest("[data-name]");
    const found = this.marks.find(mark => mark.isArea && mark.group === area) ?? this.nearest(x, y);
    this.show(found);
  }
  nearest(x, y, marks = this.seen.filter(mark => !mark.isArea), reach = NEAR) {
    const far = mark => Math.hypot(this.x.place(mark.x) - x, this.y.place(mark.y) - y);
    const best = marks.reduce((least, mark) => (least && far(least) < far(mark) ? least : mark), null);  // of equal ones the last drawn, on top
    return best && far(best) < reach ? best : null;
  }
  show(mark) {
    this.at = mark;
    tip.hidden = !mark;
    this.ring.setAttribute("visibility", mark && !mark.isArea ? "visible" : "hidden");
    if (!mark) return;
    const { name, detail } = mark.group.dataset, [x, y] = [this.x.place(mark.x), this.y.place(mark.y)];
    this.ring.setAttribute("cx", x);
    this.ring.setAttribute("cy", y);
    tip.replaceChildren();
    make("strong", {}, tip).textContent = name;
    for (const line of detail?.split("\n") ?? []) make("span", {}, tip).textContent = line;
    for (const axis of mark.isArea ? [] : [this.x, this.y]) {
      if (axis.title) make("span", {}, tip).textContent = `${axis.title}: ${axis.text(axis === this.x ? mark.x : mark.y)}`;
    }
    const box = this.svg.getBoundingClientRect(), scale = box.width / this.svg.viewBox.baseVal.width;
    const left = Math.min(box.left + x * scale + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(left, 8) + scrollX}px`;
    tip.style.top = `${Math.max(box.top + y * scale - tip.offsetHeight - 14, 4) + scrollY}px`;
  }
  grasp(event) {
    isMoved = true;
    if (event.button || event.pointerType === "touch") return this.point(event);
    this.from = this.place(event);
    this.svg.setPointerCapture(event.pointerId);
  }
  drag(x, y) {
    const [left, top] = this.from, [flat, thin] = [Math.abs(y - top), Math.abs(x - left)].map(n => n < FEWEST_DRAGGED);
    this.frame ??= make("rect", { class: "frame" }, this.svg);
    const span = (from, to, axis, isWhole) => (isWhole || axis.labels ? [axis.start, axis.end] : [from, to]).sort((a, b) => a - b);
    const across = span(left, x, this.x, thin), down = span(top, y, this.y, flat);
    const sizes = { x: across[0], y: down[0], width: across[1] - across[0], height: down[1] - down[0] };
    for (const [name, value] of Object.entries(sizes)) this.frame.setAttribute(name, value);
    this.dragged = flat && thin ? null : [across, down];
  }
  release() {
    const [across, down] = this.dragged ?? [];
    this.frame?.remove();
    this.from = this.frame = this.dragged = null;
    if (across) this.zoom(across.map(place => this.x.number(place)), down.map(place => this.y.number(place)));
  }
  zoom(x = this.x.all, y = this.y.all) {
    this.x.narrow(...x);
    this.y.narrow(...y);
    const [[a, e], [d, f]] = [this.x.move(), this.y.move()], { svg } = this;
    const matrix = `matrix(${a} 0 0 ${d} ${e} ${f})`, isZoomed = this.x.isZoomed || this.y.isZoomed;
    for (const element of svg.querySelectorAll("g[clip-path]:not(.xtick *, .ytick *) :is(path, use)")) {
      if (element.closest("defs")) continue;
      if (element.matches("path.numbers")) {
        element.setAttribute("transform", `matrix(${this.x.factor} 0 0 ${this.y.factor} ${this.x.place(0)} ${this.y.place(0)})`);
      } else if (element.matches("use") && element.closest("g[data-name]")?.querySelector("path.numbers")) {
        element.at ??= [element.getAttribute("x"), element.getAttribute("y")].map(Number);
        element.setAttribute("x", a * element.at[0] + e);
        element.setAttribute("y", d * element.at[1] + f);
      } else element.setAttribute("transform", matrix);
    }
    svg.classList.toggle("zoomed", isZoomed);
    for (const name of ["x", "y"]) this.tick(name, this[name]);
    this.show(null);
  }
  tick(name, axis) {
    this.svg.querySelectorAll(`.${name}tick.new`).forEach(tick => tick.remove());
    const ticks = [...this.svg.querySelectorAll(`.${name}tick`)], model = ticks.find(tick => tick.querySelector("text"));
    for (const tick of ticks) tick.classList.toggle("off", axis.isZoomed);
    if (!model || !axis.isZoomed) return;
    const text = model.querySelector("text"), was = Number(text.getAttribute(name)) - (name === "y" ? 0.38 * 10.5 : 0);
    for (const number of axis.ticks()) {
      const tick = model.cloneNode(true), by = axis.place(number) - was;
      tick.classList.replace("off", "new");
      tick.setAttribute("transform", name === "x" ? `translate(${by} 0)` : `translate(0 ${by})`);
      tick.querySelector("text").textContent = axis.text(number);
      model.before(tick);
    }
  }
  press(event) {
    const seen = this.seen, i = seen.indexOf(this.at), group = this.at?.group;
    const scaled = factor => ["x", "y"].map(name => {  // around the value shown, and as wide at the edge of the figure
      const { low, high } = this[name], half = (high - low) * factor / 2, at = this.at?.[name] ?? (low + high) / 2;
      const from = factor < 1 ? low + Math.max(0, Math.min(1, (at - half - low) / (high - low - 2 * half))) * (high - low - 2 * half) : low - half / 2;
      return [from, from + 2 * half];
    });
    const others = () => seen.filter(mark => mark.group !== group);
    const jump = ahead => {
      const order = [...new Set(seen.map(mark => mark.group))];
      const next = order[(order.indexOf(group) + (ahead ? 1 : order.length - 1)) % order.length];
      const own = seen.filter(mark => mark.group === next), [x, y] = [this.x.place(this.at.x), this.y.place(this.at.y)];
      return others().length ? own.reduce((best, mark) =>
        Math.abs(this.x.place(mark.x) - x) < Math.abs(this.x.place(best.x) - x) ? mark : best) : this.at;
    };
    const to = {
      ArrowRight: () => seen[Math.min(i + 1, seen.length - 1)], ArrowLeft: () => seen[Math.max(i - 1, 0)],
      ArrowDown: () => (i < 0 ? seen[0] : jump(true)), ArrowUp: () => (i < 0 ? seen[0] : jump(false)),
      Home: () => seen[0], End: () => seen.at(-1),
    }[event.key];
    if (to) this.show(to() ?? null);
    else if (event.key === "+") this.zoom(...scaled(0.5));
    else if (event.key === "-") this.zoom(...scaled(2));
    else if (event.key === "Escape") this.zoom();
    else return;
    event.preventDefault();
  }
}

function toggles(list) {
  const scope = list.closest("figure, section");
  for (const item of list.children) {
    const name = item.textContent.trim();
    const own = [...scope.querySelectorAll("[data-name]")].filter(each => each.dataset.name === name);
    if (!own.length) continue;
    const button = make("button", { type: "button", "aria-pressed": "true" }, item);
    button.append(...[...item.childNodes].filter(node => node !== button));
    button.addEventListener("click", () => {
      const isOn = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", isOn);
      for (const each of own) each.classList.toggle("off", !isOn);
    });
  }
}

// A number with its unit; details behind it, in parentheses or smaller, do not count. Text that is no number as it is.
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
for (const svg of document.querySelectorAll("svg[data-axes]")) {
  svg.tabIndex = 0;
  svg.setAttribute("aria-describedby", "hint");
  // Made when it is needed: of a page with a hundred figures a reader looks into few.
  for (const name of ["pointerenter", "focus"]) svg.addEventListener(name, () => { svg.figure ??= new Figure(svg); });
  document.getElementById("hint").hidden = false;
}
})();
