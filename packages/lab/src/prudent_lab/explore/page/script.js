"use strict";
// The page only draws. Every number comes from DATA.grid, which the accountants filled beforehand.
const DATA = /* data */ null;
const COLOURS = ["--one", "--two", "--three", "--four"];
const DASHES = ["", "7 4", "2 4", "9 3 2 3"];
const NS = "http://www.w3.org/2000/svg";
const find = (id) => document.getElementById(id);
const state = { test: "gaussian" };
const shape = { count: 20000, quantiles: [] };
let shapeName = "";

// ---- asking ---------------------------------------------------------------------------------------

function show(question, settings, ...drawings) {
  const key = DATA.grid.depends[question].map((name) => settings[name]).join("|");
  const answer = DATA.grid.answers[question][key];
  say(answer === undefined ? "This page was made without that setting." : "", answer === undefined);
  if (answer !== undefined) drawings.forEach(([id, draw]) => draw(find(id), answer));
}

function say(text, wrong = false) {
  find("status").textContent = text;
  find("status").classList.toggle("wrong", wrong);
}

// ---- numbers --------------------------------------------------------------------------------------

function written(value) {
  if (value === null || value === undefined) return "none";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

const percent = (value) => (value === null ? "none" : `${Number((100 * value).toPrecision(3))} %`);

// ---- drawing --------------------------------------------------------------------------------------

function element(name, attributes = {}, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function ticks(low, high, logarithmic) {
  if (!logarithmic) {
    const raw = (high - low) / 4, unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= raw);
    const found = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
    return found;
  }
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const factor of high / low < 30 ? [1, 2, 5] : [1])
      if (factor * 10 ** power >= low / 1.001 && factor * 10 ** power <= high * 1.001) found.push(factor * 10 ** power);
  return found;
}

function scale(values, [from, to], logarithmic, ground) {
  let low = Math.min(...values), high = Math.max(...values);
  if (ground !== undefined) low = Math.min(low, ground);
  if (low === high) { low = logarithmic ? low / 2 : low - 0.5; high = logarithmic ? high * 2 : high + 0.5; }
  const place = logarithmic ? Math.log : (each) => each;
  const at = (value) => from + ((place(value) - place(low)) / (place(high) - place(low))) * (to - from);
  return { at, ticks: ticks(low, high, logarithmic), low, high };
}

// Lines over one axis, with a legend that does not rely on colour, and the numbers as a table.
function lines(figure, { x, xName, yName, series, logX = false, logY = false, ground, mark, readX = written, readY = written, note }) {
  const caption = figure.querySelector("figcaption");
  figure.replaceChildren(caption);
  const known = series.filter((each) => each.values.some((value) => value !== null && (!logY || value > 0)));
  const flat = known.flatMap((each) => each.values).filter((value) => value !== null && (!logY || value > 0));
  if (mark !== undefined) flat.push(mark.value);
  if (!flat.length) { addNote(figure, note || "No value exists for these settings."); return; }
  const width = 420, height = 250, left = 52, bottom = 38;
  const across = scale(x, [left, width - 12], logX);
  const up = scale(flat, [height - bottom, 12], logY, ground);
  const drawing = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary(caption.textContent, x, known, xName, readX, readY) });
  for (const tick of across.ticks) {
    drawing.append(element("line", { class: "axis", x1: across.at(tick), x2: across.at(tick), y1: 12, y2: height - bottom }));
    drawing.append(element("text", { x: across.at(tick), y: height - bottom + 15, "text-anchor": "middle" }, readX(tick)));
  }
  for (const tick of up.ticks) {
    drawing.append(element("line", { class: "axis", x1: left, x2: width - 12, y1: up.at(tick), y2: up.at(tick) }));
    drawing.append(element("text", { x: left - 5, y: up.at(tick) + 4, "text-anchor": "end" }, readY(tick)));
  }
  drawing.append(element("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, xName));
  if (mark !== undefined) {
    drawing.append(element("line", { x1: left, x2: width - 12, y1: up.at(mark.value), y2: up.at(mark.value), stroke: "var(--quiet)", "stroke-dasharray": "1 3" }));
    drawing.append(element("text", { x: width - 14, y: up.at(mark.value) - 4, "text-anchor": "end" }, mark.name));
  }
  known.forEach((each, index) => {
    let path = "";
    each.values.forEach((value, place) => {
      if (value === null || (logY && value <= 0)) return;
      path += `${path ? "L" : "M"}${across.at(x[place]).toFixed(1)},${up.at(value).toFixed(1)}`;
    });
    drawing.append(element("path", { d: path, fill: "none", stroke: `var(${COLOURS[index]})`, "stroke-width": 2.5, "stroke-dasharray": DASHES[index] }));
  });
  figure.append(drawing, legend(known), numbers(x, known, xName, readX, readY));
  if (yName) addNote(figure, yName);
  if (note) addNote(figure, note);
}

function summary(title, x, series, xName, readX, readY) {
  const ends = series.map((each) => {
    const last = each.values.findLastIndex((value) => value !== null);
    return `${each.name}: ${readY(each.values[last])} at ${readX(x[last])} ${xName}`;
  });
  return `${title}. ${ends.join("; ")}.`;
}

function legend(series) {
  const list = document.createElement("ul");
  list.className = "legend";
  series.forEach((each, index) => {
    const item = document.createElement("li");
    const sample = element("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" });
    sample.append(element("line", { x1: 0, x2: 32, y1: 6, y2: 6, stroke: `var(${COLOURS[index]})`, "stroke-width": 4, "stroke-dasharray": DASHES[index] }));
    item.append(sample, each.name);
    list.append(item);
  });
  return list;
}

function numbers(x, series, xName, readX, readY) {
  const details = document.createElement("details"), heading = document.createElement("summary");
  heading.textContent = "The numbers";
  const wrap = document.createElement("div"), table = document.createElement("table");
  wrap.className = "scroll"; wrap.tabIndex = 0;
  const row = (cells, kind) => {
    const made = document.createElement("tr");
    cells.forEach((text) => { const cell = document.createElement(kind); cell.textContent = text; made.append(cell); });
    table.append(made);
  };
  row([xName, ...series.map((each) => each.name)], "th");
  x.forEach((value, place) => row([readX(value), ...series.map((each) => readY(each.values[place]))], "td"));
  wrap.append(table);
  details.append(heading, wrap);
  return details;
}

function addNote(figure, text) {
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = text;
  figure.append(note);
}

function bars(figure, entries, note) {
  const caption = figure.querySelector("figcaption");
  figure.replaceChildren(caption);
  const known = entries.filter(([, value]) => value !== null);
  if (!known.length) { addNote(figure, "No noise meets this target: δ is below what the tests alone cost."); return; }
  const width = 420, row = 44, most = Math.max(...known.map(([, value]) => value));
  const drawing = element("svg", { viewBox: `0 0 ${width} ${row * known.length}`, role: "img", "aria-label": `${caption.textContent}. ${known.map(([name, value]) => `${name}: ${written(value)}`).join("; ")}.` });
  known.forEach(([name, value], index) => {
    drawing.append(element("text", { x: 0, y: index * row + 14 }, name));
    drawing.append(element("rect", { x: 0, y: index * row + 19, width: Math.max(2, (value / most) * (width - 60)), height: 15, rx: 3, fill: `var(${COLOURS[index]})` }));
    drawing.append(element("text", { x: (value / most) * (width - 60) + 6, y: index * row + 31 }, written(value)));
  });
  figure.append(drawing);
  if (note) addNote(figure, note);
}

// ---- settings -------------------------------------------------------------------------------------

function setting(form, { id, label, explanation, input }) {
  const made = document.createElement("div");
  made.className = "setting";
  const name = document.createElement("label"), shown = document.createElement("output");
  name.htmlFor = input.id = id;
  name.append(label, shown);
  made.append(name, input);
  if (explanation) {
    const small = document.createElement("small");
    small.id = `${id}-help`; small.textContent = explanation;
    input.setAttribute("aria-describedby", small.id);
    made.append(small);
  }
  form.append(made);
  return shown;
}

function slider(form, definition, changed) {
  const { name, label, start, stops, explanation } = definition;
  const input = document.createElement("input");
  Object.assign(input, { type: "range", min: 0, max: stops.length - 1, step: 1, disabled: stops.length === 1 });
  input.value = stops.indexOf(start);
  const shown = setting(form, { id: `set-${name}`, label, explanation, input });
  const update = () => {
    const value = stops[Number(input.value)];
    state[name] = value;
    shown.textContent = written(value);
    input.setAttribute("aria-valuetext", `${label} ${written(value)}`);
  };
  input.addEventListener("input", () => { update(); changed(); });
  update();
}

function choice(form, id, label, entries, changed) {
  const input = document.createElement("select");
  entries.forEach(([value, text]) => input.append(new Option(text, value)));
  setting(form, { id, label, input });
  input.addEventListener("change", () => changed(input.value));
}

// ---- training -------------------------------------------------------------------------------------

function drawTraining() {
  const settings = { ...state };
  show("spent", settings,
    ["figure-spent", (figure, found) => lines(figure, {
      x: found.steps, xName: "steps", logX: true, ground: 0, mark: { value: settings.epsilon, name: `target ${written(settings.epsilon)}` },
      series: [{ name: "with the test", values: found.tested }, { name: "no test (DP-SGD)", values: found.plain }, { name: "with the test, by the paper's Theorem 4.4", values: found.paper }],
      note: settings.test === "laplace" ? (found.paper.some((each) => each !== null) ? "" : "The paper's theorem does not apply: its conditions fail at every order.") : "The paper's theorem is for Laplace tests.",
    })],
    ["figure-left", (figure, found) => lines(figure, {
      x: found.steps, xName: "steps", logX: true, ground: 0,
      series: [{ name: "with the test", values: found.tested.map((each) => (each === null ? null : Math.max(0, settings.epsilon - each))) },
        { name: "no test", values: found.plain.map((each) => (each === null ? null : Math.max(0, settings.epsilon - each))) }],
    })]);
  show("noise", settings, ["figure-noise", (figure, found) => bars(figure,
    [["DP-SGD", found.plain], ["TSGD+PTR, test passed", found.passed], ["TSGD+PTR, test failed", found.failed]],
    `For ε = ${written(settings.epsilon)} after ${written(settings.steps)} steps.`)]);
  show("passing", settings, ["figure-passing", (figure, found) => lines(figure, {
    x: found.shares, xName: "share of long gradients", series: [{ name: "passes", values: found.chances }], ground: 0, readX: percent, readY: percent,
    note: `The ${found.trim} longest gradients are left out; the noisy margin must exceed ${written(found.threshold)} records.`,
  })]);
  if (!find("certificates").hidden) drawWithstood();
}

// ---- tables ---------------------------------------------------------------------------------------

const PROBABILITIES = [0.05, 0.25, 0.5, 0.75, 0.95];

function drawShape() {
  const figure = find("figure-shape"), caption = figure.querySelector("figcaption");
  figure.replaceChildren(caption);
  const width = 420, height = 220, values = shape.quantiles;
  const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  const across = (value) => 20 + ((value - low + 0.1 * span) / (1.2 * span)) * (width - 40);
  const up = (p) => height - 30 - p * (height - 50);
  const drawing = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": PROBABILITIES.map((p, i) => `${percent(p)} of the values are below ${written(values[i])}`).join("; ") });
  drawing.append(element("polyline", { points: values.map((value, i) => `${across(value)},${up(PROBABILITIES[i])}`).join(" "), fill: "none", stroke: "var(--one)", "stroke-width": 2.5 }));
  values.forEach((value, i) => {
    drawing.append(element("circle", { class: "handle", cx: across(value), cy: up(PROBABILITIES[i]), r: 9 }));
    drawing.append(element("text", { x: across(value), y: up(PROBABILITIES[i]) - 13, "text-anchor": "middle" }, written(value)));
  });
  drawing.append(element("text", { x: width / 2, y: height - 6, "text-anchor": "middle" }, "value (share of records below it: 5, 25, 50, 75, 95 %)"));
  figure.append(drawing);
}

function drawTables() {
  show("tables", { shape: shapeName, count: shape.count }, ["figure-tables", (figure, found) => lines(figure, {
    x: found.epsilons, xName: "ε", logX: true, logY: true,
    series: Object.entries(found.errors).map(([name, values]) => ({ name, values })),
    note: "Median of |answer − true median| over 25 rehearsals on made-up data, in the unit of the data. " + refusals(found),
  })]);
}

function refusals(found) {
  const often = Object.entries(found.refused).filter(([, shares]) => shares.some((each) => each > 0))
    .map(([name, shares]) => `${name} refused in ${shares.map(percent).join(", ")} of them.`);
  return often.join(" ");
}

function prepareTables() {
  const form = find("tables-settings"), shapes = Object.entries(DATA.grid.shapes);
  const pick = (name) => {
    shapeName = name;
    shape.quantiles = [...DATA.grid.shapes[name]];
    PROBABILITIES.forEach((p, i) => { find(`set-q${i}`).value = shape.quantiles[i]; });
    drawShape();
    if (!find("tables").hidden) drawTables();
  };
  choice(form, "set-shape", "Shape", shapes.map(([name]) => [name, name]), pick);
  choice(form, "set-count", "Records", DATA.grid.counts.map((each) => [each, each.toLocaleString("en")]), (value) => { shape.count = Number(value); drawTables(); });
  PROBABILITIES.forEach((p, i) => {
    const input = document.createElement("input");
    Object.assign(input, { type: "number", step: "any", disabled: true });
    setting(form, { id: `set-q${i}`, label: `${percent(p)} of the values are below`, input });
  });
  shape.count = DATA.grid.counts[0];
  pick(shapes[0][0]);
}

// ---- certificates ---------------------------------------------------------------------------------

function drawWithstood() {
  show("withstood", { ...state }, ["figure-withstood", (figure, found) => lines(figure, {
    x: found.records, xName: "bad records", series: [{ name: "expected accuracy, at least", values: found.accuracy }], ground: 0, readY: percent,
    note: "By group privacy of the whole run: it holds for records chosen by someone who knows everything but the run's randomness.",
  })]);
}

function drawMeasured() {
  const found = DATA.measured;
  lines(find("figure-measured"), {
    x: found.records, xName: "bad records", ground: 0, readY: percent,
    series: found.curves.map((each) => ({ name: each.name, values: each.accuracy })), note: found.note,
  });
}

// ---- the page -------------------------------------------------------------------------------------

function chooseTab(chosen) {
  document.querySelectorAll('[role="tab"]').forEach((tab) => {
    const on = tab === chosen;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    find(tab.getAttribute("aria-controls")).hidden = !on;
  });
  if (chosen.id === "tab-tables") drawTables();
  if (chosen.id === "tab-certificates") { drawWithstood(); drawMeasured(); }
}

function prepareTabs() {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => chooseTab(tab));
    tab.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const next = tabs[(index + move + tabs.length) % tabs.length];
      next.focus();
      chooseTab(next);
    });
  });
}

function prepareTheme() {
  const button = find("theme");
  const set = (dark) => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
  };
  set(matchMedia("(prefers-color-scheme: dark)").matches);
  button.addEventListener("click", () => set(document.documentElement.dataset.theme !== "dark"));
}

function prepare() {
  prepareTheme();
  prepareTabs();
  find("origin").textContent = DATA.grid.note;
  const form = find("training-settings");
  choice(form, "set-test", "Test", [["gaussian", "Gaussian"], ["laplace", "Laplace"]], (value) => { state.test = value; drawTraining(); });
  DATA.sliders.filter((each) => each.name !== "accuracy").forEach((each) => slider(form, each, drawTraining));
  slider(find("certificates-settings"), DATA.sliders.find((each) => each.name === "accuracy"), drawWithstood);
  prepareTables();
  drawTraining();
}

prepare();
