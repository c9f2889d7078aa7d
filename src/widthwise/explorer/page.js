"use strict";

// `set` has the controls that the user changed. The query of the page's address has the same values.
const byId = id => document.getElementById(id);
const set = new Map(new URLSearchParams(location.search));
const query = () => { const text = String(new URLSearchParams([...set])); return text && `?${text}`; };
let controls, shown, isAsking = false, isStale = false, isCounting = false, memoryTimer;

async function ask(path) {
  const answer = await fetch(path).catch(() => null);
  if (!answer) return { error: "the explorer has ended; start `widthwise explore` again" };
  return answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}; the terminal says more` }));
}

function fill(select, values) {
  select.replaceChildren(...values.map(value => new Option(value)));
}

// Value of a control: the user's, else the recipe's, or the default if the user chose another kind than the recipe's.
function value(name) {
  if (set.has(name)) return set.get(name);
  const { start, shapes, ffns } = controls, shape = set.get("shape") ?? start.shape, ffn = set.get("ffn") ?? start.ffn;
  if (name.startsWith("turn_") && shape !== start.shape) return shapes[shape]?.[name] ?? "";
  if (name === "ratio" && ffn !== start.ffn) return ffns[ffn] ?? "";
  if (name === "quantum" && shape !== start.shape) return "";
  if (name === "rounding" && shape !== start.shape) return "balanced";
  if (name === "d_model" && set.has("budget")) return shown?.d_model ?? start.d_model;
  return start[name] ?? "";
}

function change(name, text) {
  if (name === "quantum" && text === "" && controls.start.quantum && value("shape") === controls.start.shape) text = "smallest";
  if (text === "") set.delete(name); else set.set(name, text);
  if (name === "shape") ["turn_layer", "turn_width", "quantum", "rounding"].forEach(key => set.delete(key));
  if (name === "ffn") set.delete("ratio");
  if (name === "n_heads") set.delete("head_dim");
  if (name === "head_dim") set.delete("n_heads");
  if (name === "budget") set.delete("d_model");
  history.replaceState(null, "", location.pathname + query());
  refresh();
}

function showControls() {
  const shape = value("shape"), limits = controls.shapes[shape] ?? {}, ranges = {
    turn_layer: [0, 1], turn_width: [limits.low, limits.high], ratio: [0.05, Math.max(8, 2 * controls.start.ratio)],
    d_model: [controls.d_model_step, Math.max(2048, 2 * controls.start.d_model)], n_layers: [1, Math.max(48, 2 * controls.start.n_layers)],
  };
  const isOff = {
    turn_layer: limits.turn_layer == null, turn_width: limits.turn_width == null, quantum: shape === "uniform",
    rounding: shape === "uniform", match: shape === "uniform" && !set.has("budget"), d_model: set.has("budget"),
  };
  for (const row of document.querySelectorAll(".pair")) {
    const name = row.dataset.name, step = row.dataset.step ?? controls.d_model_step, [slider, box] = row.querySelectorAll("input");
    [slider.min, slider.max, slider.step] = [...ranges[name], step];
    box.step = "any";
    for (const input of [slider, box]) {
      input.disabled = isOff[name] ?? false;
      if (input !== document.activeElement || input === slider) input.value = value(name);
    }
  }
  for (const input of document.querySelectorAll("[name]:not(meta)")) {
    input.disabled = isOff[input.name] ?? false;
    if (input !== document.activeElement) input.value = input.name === "quantum" && value("quantum") === "smallest" ? "" : value(input.name);
  }
  const by = set.has("n_heads") ? "n_heads" : set.has("head_dim") || !value("n_heads") ? "head_dim" : "n_heads";
  byId("heads_by").value = by;
  if (byId("heads") !== document.activeElement) byId("heads").value = value(by);
}

// One request at a time: changes made while it runs are sent together in the next.
async function refresh() {
  showControls();
  isStale = true;
  if (isAsking) return;
  isAsking = true;
  while (isStale) {
    isStale = false;
    const began = performance.now(), asked = query(), answer = await ask(`/costs${asked}`);
    document.body.dataset.milliseconds = Math.round(performance.now() - began);
    show(answer, asked);
  }
  isAsking = false;
  showControls();
  clearTimeout(memoryTimer);
  if (byId("memory_part").open && byId("error").hidden) memoryTimer = setTimeout(showMemory, 250);
}

function show(answer, asked) {
  byId("error").hidden = !answer.error;
  byId("error").textContent = answer.error ?? "";
  document.body.classList.toggle("stale", Boolean(answer.error));
  for (const id of ["copy", "link"]) byId(id).disabled = Boolean(answer.error);
  byId("download").toggleAttribute("href", !answer.error);
  byId("done").textContent = "";
  if (answer.error) return;
  shown = answer.inspection;
  byId("download").href = `/recipe.yaml${asked}`;
  byId("yaml").textContent = answer.yaml;
  draw(shown);
  for (const id of ["costs", "layers"]) table(byId(id), answer[id]);
  const ratio = Object.entries(shown.ratio ?? {}).filter(([name]) => ["params", "flops", "kv_bytes", "activation_bytes"].includes(name));
  const ratios = ratio.map(([name, value]) => `${name} ${value.toFixed(3)}×`).join(", ");
  byId("summary").textContent = `${shown.params.total.toLocaleString("en")} parameters` + (ratios && `; over the baseline: ${ratios}`) +
    (answer.budget && `; ${answer.budget}`);
}

// A separate request, also one at a time: it takes seconds, and the sliders should stay quick.
async function showMemory() {
  if (isCounting) return;
  isCounting = true;
  if (!byId("memory").rows.length) byId("memory").createCaption().textContent = "counting …";
  const asked = query(), answer = await ask(`/memory${asked}`);
  isCounting = false;
  if (asked === query()) table(byId("memory"), answer.error ? { caption: answer.error, header: [], rows: [] } : answer);
  else refresh();
}

function table(element, { caption, header, rows }) {
  const cell = (tag, textContent, more = {}) => Object.assign(document.createElement(tag), { textContent, ...more });
  const line = cells => { const row = document.createElement("tr"); row.append(...cells); return row; };
  element.replaceChildren();
  element.createCaption().textContent = caption;
  element.createTHead().append(line(header.map(text => cell("th", text, { scope: "col" }))));
  element.createTBody().append(...rows.map(([name, ...rest]) => line([cell("th", name, { scope: "row" }), ...rest.map(text => cell("td", text))])));
}

function draw({ widths, hidden_widths: hidden, baseline }) {
  const svg = byId("drawing"), wide = 640, middle = 110, top = 108, step = wide / widths.length;
  const reference = baseline?.widths ?? [], widest = Math.max(...widths, ...reference), sums = hidden.map(sizes => sizes.reduce((a, b) => a + b, 0));
  const element = (name, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, text]) => node.setAttribute(key, text));
    node.append(...children);
    return node;
  };
  const bars = widths.map((width, i) => {
    const half = top * width / widest, title = element("title", {}, `layer ${i + 1}: width ${width}, hidden ${hidden[i].join("+")}`);
    return element("rect", { class: "bar", x: i * step + step * 0.06, y: middle - half, width: step * 0.88, height: 2 * half }, title);
  });
  const path = (values, scale, sign) => "M" + values.flatMap((value, i) => [i, i + 1].map(end => `${end * step} ${middle - sign * top * value / scale}`)).join("L");
  const lines = [1, -1].flatMap(sign => [
    element("path", { class: "hidden", d: path(sums, Math.max(...sums), sign) }),
    ...reference.length ? [element("path", { class: "baseline", fill: "none", d: path(reference, widest, sign) })] : [],
  ]);
  svg.replaceChildren(...bars, ...lines);
  byId("first").textContent = `layer 1: ${widths[0]}`;
  byId("between").textContent = `${Math.min(...widths)} to ${Math.max(...widths)} channels`;
  byId("last").textContent = `layer ${widths.length}: ${widths.at(-1)}`;
  svg.setAttribute("aria-label", `Widths of ${widths.length} layers: ${widths.join(", ")}`);
}

async function copy(button, text) {
  const done = await navigator.clipboard.writeText(text).then(() => true, () => false);
  byId("done").textContent = done ? `copied (${button.textContent.toLowerCase().replace("copy ", "")})` : "the browser refuses to copy";
}

function listen() {
  for (const row of document.querySelectorAll(".pair"))
    row.querySelectorAll("input").forEach(input => input.addEventListener("input", () => change(row.dataset.name, input.value)));
  for (const input of document.querySelectorAll("[name]:not(meta)")) input.addEventListener("input", () => change(input.name, input.value));
  byId("heads").addEventListener("input", () => change(byId("heads_by").value, byId("heads").value));
  byId("heads_by").addEventListener("input", () => {
    const by = byId("heads_by").value, size = shown.d_model / value(by === "n_heads" ? "head_dim" : "n_heads");
    change(by, String(Math.max(1, Math.round(size))));
  });
  byId("controls").addEventListener("submit", event => event.preventDefault());
  byId("reset").addEventListener("click", () => { [...set.keys()].forEach(name => set.delete(name)); change("", ""); });
  byId("copy").addEventListener("click", () => copy(byId("copy"), byId("yaml").textContent));
  byId("link").addEventListener("click", () => copy(byId("link"), location.href));
  byId("memory_part").addEventListener("toggle", refresh);
}

async function start() {
  controls = await ask("/controls");
  document.title = `${controls.name}: shape explorer`;
  byId("name").textContent = controls.name;
  byId("download").download = `${controls.name}_explored.yaml`;
  fill(byId("shape"), [...new Set([controls.start.shape, ...Object.keys(controls.shapes)])]);
  fill(byId("match"), controls.matches);
  fill(byId("rounding"), controls.roundings);
  fill(byId("ffn"), [...new Set([controls.start.ffn, ...Object.keys(controls.ffns)])]);
  listen();
  refresh();
}

start();
