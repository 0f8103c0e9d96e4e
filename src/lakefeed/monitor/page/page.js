"use strict";
// Reads status.json every two seconds and shows it. Everything that comes from there is set as text, never as markup.

const POLL_MS = 2000, TIMEOUT_MS = 5000;
const VERDICTS = { healthy: "good", idle: "good", stalled: "bad", stopped: "warn" };
const STATES = { live: "good", "catching up": "calm", copying: "calm", staged: "calm", blocked: "bad", dropped: "warn" };
const $ = (id) => document.getElementById(id);
let shown = null, answeredAt = 0, failure = null;

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) => child instanceof Node ? child : String(child)));
  return node;
}
function draw(tag, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const brief = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = (number) => number === null || number === undefined ? "–" : whole.format(number);
const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const perSecond = (number) => `${number >= 10000 ? brief.format(number) : number >= 10 ? whole.format(number) : Number(number.toFixed(1))}/s`;
function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) { bytes /= 1024; at += 1; }
  return `${at === 0 ? bytes : bytes.toFixed(1)} ${units[at]}`;
}
function lasting(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(minutes / 1440)} days`;
}
const ago = (seconds) => seconds === null || seconds === undefined ? "–" : `${lasting(Math.max(0, seconds))} ago`;
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

function node(id, big, small) {
  const [, strong, muted] = $(id).children;
  strong.textContent = big;
  muted.textContent = small;
}
function pipe(id, rate) {
  const box = $(id);
  box.querySelector(".rate").textContent = rate > 0 ? `${perSecond(rate).replace("/s", "")} rows/s` : "quiet";
  box.toggleAttribute("data-moving", rate > 0);
  box.style.setProperty("--pace", `${Math.max(0.25, 1.6 - Math.log10(1 + rate) * 0.35).toFixed(2)}s`);
}

function showHead(data) {
  const kind = VERDICTS[data.verdict] || "warn";
  document.title = `${data.pipeline}: ${data.verdict} · Lakefeed`;
  $("name").textContent = data.pipeline;
  $("about").textContent = [data.about.source, data.about.lake].filter(Boolean).join(" → ");
  $("verdict").textContent = data.verdict;
  $("verdict").dataset.kind = kind;
  $("reason").replaceChildren(data.reason.charAt(0).toUpperCase() + data.reason.slice(1) + (data.reason.endsWith(".") ? "" : "."));
  if (data.remedy) $("reason").append(make("span", { class: "remedy" }, "Remedy: ", data.remedy));
  $("version").textContent = `Lakefeed ${data.version}`;
}

function showFlow(data) {
  const tables = Object.values(data.tables).filter((table) => table.state !== "dropped");
  const live = tables.filter((table) => table.state === "live" && !table.error).length;
  const lag = data.lag, source = data.source;
  let waiting = "lag unknown";
  if (lag.rows !== null) waiting = lag.rows ? `${count(lag.rows)} waiting` : "nothing waiting";
  else if (lag.bytes !== null) waiting = lag.bytes ? `${size(lag.bytes)} waiting` : "nothing waiting";
  else if (lag.seconds !== null) waiting = lag.seconds ? `${lasting(lag.seconds)} behind` : "nothing waiting";
  if (data.unanswered.includes("source")) waiting = "does not answer";
  const kept = [];
  if (source.wal_status) kept.push(`slot ${source.wal_status}`);
  if (source.retained_bytes !== null && source.retained_bytes !== undefined) kept.push(`${size(source.retained_bytes)} of log kept`);
  if (source.left_bytes !== null && source.left_bytes !== undefined) kept.push(`${size(source.left_bytes)} until it is lost`);
  if (source.left_seconds !== null && source.left_seconds !== undefined) kept.push(`${lasting(source.left_seconds)} until it is lost`);
  node("node-source", waiting, kept.join(" · ") || data.about.source || "");
  const written = data.journal.written_at;
  node("node-journal", counted(data.journal_head, "change set"),
    [size(data.journal.bytes), written ? `last ${ago(data.at - written)}` : null].filter(Boolean).join(" · "));
  node("node-lake", `${live} of ${counted(tables.length, "table")} live`,
    data.age_seconds === null ? "no change yet" : `newest change ${ago(data.age_seconds)}`);
  pipe("pipe-capture", data.rates.captured);
  pipe("pipe-apply", data.rates.applied + data.rates.copied);
}

function showAttention(data) {
  const cards = [];
  const add = (kind, about, problem, remedy, seen) => cards.push(make("div", { class: "problem", "data-kind": kind },
    make("p", { class: "what" }, about ? `${about}: ` : "", problem),
    remedy ? make("p", { class: "remedy" }, "Remedy: ", make("code", {}, remedy)) : null,
    seen ? make("p", { class: "muted" }, seen) : null));
  const current = new Set();
  for (const [name, table] of Object.entries(data.tables)) {
    if (table.error) { add("bad", name, table.error, table.remedy); current.add(`${name}\n${table.error}`); }
    if (table.verified && !table.verified.equal) add("bad", name, `different from the source when it was verified: ${table.verified.difference}`, null, ago(data.at - table.verified.at));
  }
  for (const one of data.blocked) add("bad", `${one.table} of ${one.source}`, one.error, one.remedy);
  for (const one of data.findings) add(one.level === "error" ? "bad" : "warn", one.table, one.problem, one.remedy);
  for (const one of data.errors) {
    if (current.has(`${one.table}\n${one.error}`) || one.error === data.reason) continue;
    add("warn", one.table, one.error, one.remedy, `${ago(data.at - one.at)}${one.count > 1 ? `, ${one.count} times` : ""}; it was tried again`);
  }
  if (data.unanswered.length) add("warn", null, `no answer in time from ${data.unanswered.join(", ")}`, null);
  $("attention").hidden = cards.length === 0;
  $("attention").querySelector(".cards").replaceChildren(...cards);
}

function showCopies(data) {
  const bars = Object.entries(data.tables).filter(([, table]) => ["staged", "copying"].includes(table.state)).map(([name, table]) => {
    const copy = table.copy;
    let text = table.state === "staged" ? "waits" : "begins";
    if (copy) {
      text = `${count(copy.rows)} of about ${count(copy.rows_estimate)} rows`;
      if (copy.share !== null) text += ` · ${Math.floor(copy.share * 100)} %`;
      if (copy.seconds_left !== null) text += ` · ${lasting(copy.seconds_left)} left`;
    }
    const fill = make("span");
    fill.style.width = `${copy && copy.share !== null ? copy.share * 100 : 0}%`;
    return make("div", { class: "bar" }, make("p", { class: "names" }, make("span", {}, name), make("span", { class: "muted" }, text)), make("div", { class: "track" }, fill));
  });
  $("copies").hidden = bars.length === 0;
  $("copies").querySelector(".bars").replaceChildren(...bars);
}

function showTables(data) {
  const rank = (table) => table.error ? 0 : table.state === "live" ? 2 : 1;
  const all = Object.entries(data.tables).sort((a, b) => rank(a[1]) - rank(b[1]) || a[0].localeCompare(b[0]));
  const wanted = $("filter").value.trim().toLowerCase();
  $("filter").hidden = all.length < 12 && !wanted;
  const rows = all.filter(([name, table]) => !wanted || name.toLowerCase().includes(wanted) || table.state.includes(wanted));
  $("table-count").textContent = rows.length === all.length ? "" : `${rows.length} of ${all.length}`;
  $("tables").replaceChildren(...rows.map(([name, table]) => {
    const state = table.copy && table.copy.share !== null ? `${table.state} ${Math.floor(table.copy.share * 100)} %` : table.state;
    const kind = table.error ? "bad" : STATES[table.state] || "calm";
    let waiting = count(table.lag_rows);
    if (table.lag_rows) waiting += ` · ${lasting(table.lag_seconds)}`;
    const verified = table.verified;
    return make("tr", {}, make("td", { class: "name" }, name),
      make("td", {}, make("span", { class: "pill", "data-kind": kind }, table.error && table.state === "live" ? "stopped" : state)),
      make("td", { class: "number" }, count(table.rows)), make("td", { class: "number" }, waiting),
      make("td", { class: "number" }, table.rows_per_second ? perSecond(table.rows_per_second) : "–"),
      make("td", { class: "number" }, ago(table.age_seconds)),
      make("td", { title: verified && verified.through ? `equal through ${verified.through.position}, ${count(verified.through.rows)} rows` : "" }, verified ? `${verified.equal ? "equal" : "different"}, ${ago(data.at - verified.at)}` : "–"));
  }));
  if (!all.length) $("tables").replaceChildren(make("tr", {}, make("td", { colspan: 7, class: "empty" }, "No table yet.")));
}

function showChangeSets(data) {
  const rows = data.change_sets.map((one) => make("tr", {},
    make("td", { class: "number" }, count(one.number)), make("td", { class: "number" }, ago(data.at - one.written_at)),
    make("td", { class: "number" }, count(one.rows)), make("td", { class: "number" }, size(one.bytes)),
    make("td", { class: "long" }, one.tables.length > 4 ? `${one.tables.slice(0, 4).join(", ")} and ${one.tables.length - 4} more` : one.tables.join(", ") || "–"),
    make("td", { class: "long" }, one.position)));
  $("change-sets").replaceChildren(...rows);
  if (!rows.length) $("change-sets").replaceChildren(make("tr", {}, make("td", { colspan: 6, class: "empty" }, "No change set yet.")));
}

// The last hour, or less as long as there is less to show: the first step of a window that has everything.
function windowStart(history) {
  const length = history.applied.length, names = ["captured", "applied", "copied", "lag_seconds"];
  const first = history.applied.findIndex((_, index) => names.some((name) => history[name][index] > 0));
  const minutes = first < 0 ? 60 : (length - first) * history.step_seconds / 60;
  return Math.max(0, length - [5, 10, 15, 30, 60].find((window) => window >= Math.min(60, minutes)) * 60 / history.step_seconds);
}

// One chart: series of equal length over the last hour. `text` writes a value for the axis and the tip.
function chart(id, history, series, text, least) {
  const box = $(id), width = Math.max(200, box.clientWidth), height = box.clientHeight, left = 52, bottom = 20, top = 8;
  const length = series[0].values.length, step = history.step_seconds;
  const highest = Math.max(least, ...series.flatMap((one) => one.values));
  const power = 10 ** Math.floor(Math.log10(highest)), ceiling = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= highest);
  const x = (index) => left + (width - left) * index / (length - 1), y = (value) => top + (height - bottom - top) * (1 - value / ceiling);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${series.map((one) => one.name).join(", ")} over the last hour` });
  for (const share of [0, 0.5, 1]) {
    svg.append(draw("line", { class: "grid", x1: left, x2: width, y1: y(ceiling * share), y2: y(ceiling * share) }));
    svg.append(draw("text", { x: left - 8, y: y(ceiling * share) + 4, "text-anchor": "end" }, text(ceiling * share)));
  }
  const minutes = Math.round(length * step / 60);
  for (const share of width > 380 ? [0, 1 / 3, 2 / 3, 1] : [0, 1]) {
    const text = share === 1 ? "now" : `−${Number((minutes * (1 - share)).toFixed(1))} min`;
    svg.append(draw("text", { x: x((length - 1) * share), y: height - 4, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, text));
  }
  for (const one of series) {
    const points = one.values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    svg.append(draw("polygon", { class: "area", "data-series": one.name, points: `${left},${y(0)} ${points} ${width},${y(0)}` }));
    svg.append(draw("polyline", { class: "stroke", "data-series": one.name, points }));
  }
  const cursor = draw("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" }), tip = make("div", { class: "tip", hidden: "" });
  svg.append(cursor);
  box.onpointermove = (event) => {
    const at = event.clientX - box.getBoundingClientRect().left, index = Math.round((at - left) / (width - left) * (length - 1));
    const inside = index >= 0 && index < length;
    cursor.setAttribute("visibility", inside ? "visible" : "hidden");
    tip.hidden = !inside;
    if (!inside) return;
    cursor.setAttribute("x1", x(index));
    cursor.setAttribute("x2", x(index));
    tip.textContent = [clock(history.until - (length - index) * step), ...series.map((one) => `${one.name} ${text(one.values[index])}`)].join(" · ");
    tip.style.left = `${Math.min(Math.max(0, x(index) - tip.offsetWidth / 2), width - tip.offsetWidth)}px`;
  };
  box.onpointerleave = () => { cursor.setAttribute("visibility", "hidden"); tip.hidden = true; };
  box.replaceChildren(svg, tip);
}

function showCharts(data) {
  const history = data.history, start = windowStart(history);
  const rate = (values) => values.slice(start).map((value) => value / history.step_seconds);
  chart("chart-rows", history, ["captured", "applied", "copied"].map((name) => ({ name, values: rate(history[name]) })), (value) => perSecond(value), 1);
  chart("chart-lag", history, [{ name: "lag", values: history.lag_seconds.slice(start) }], (value) => value === 0 ? "0 s" : lasting(value), 1);
}

function show(data) {
  shown = data;
  showHead(data);
  showFlow(data);
  showAttention(data);
  showCharts(data);
  showCopies(data);
  showTables(data);
  showChangeSets(data);
}

function tell() {
  const seconds = answeredAt ? (Date.now() - answeredAt) / 1000 : 0;
  $("updated").textContent = !answeredAt ? "" : seconds < 5 ? "live" : `last answer ${ago(seconds)}`;
  let text = "";
  if (failure && !(answeredAt && seconds < 5)) text = `No answer from Lakefeed (${failure}). ${answeredAt ? `The figures are those of ${clock(answeredAt / 1000)}.` : ""}`;
  else if (shown && shown.read_seconds_ago > 30) text = `Lakefeed could not read the state of the pipeline for ${lasting(shown.read_seconds_ago)}. The figures are from before.`;
  $("offline").hidden = !text;
  $("offline").textContent = text;
}

async function poll() {
  try {
    const answer = await fetch("status.json", { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    const data = await answer.json();
    answeredAt = Date.now();
    failure = null;
    show(data);
  } catch (error) {
    failure = error.message;
  }
  tell();
  setTimeout(poll, document.hidden ? POLL_MS * 5 : POLL_MS);
}

$("filter").addEventListener("input", () => shown && showTables(shown));
window.addEventListener("resize", () => shown && showCharts(shown));
document.addEventListener("visibilitychange", () => { if (!document.hidden && shown) tell(); });
poll();
