// The page of the admin listener. It is told the whole state once a second (`/events`, the document of `/live.json`) and
// puts it on the screen, as text and never as HTML: names in it were chosen by whoever clones.
//
// EventSource cannot send a token, so the stream is read by fetch whether a token is needed or not.
//
// Nothing moves under the cursor: while the pointer is over a list, or the keyboard in it, numbers go on changing but rows
// stay where they are. Ended ones are struck through, new ones counted in a line whose place is always kept.
"use strict";

const SILENCE_MS = 30_000; // longer than the pause between the server's keep-alives: the stream is dead
const MOST_CELLS = 40; // seats of a limit that are drawn one by one
const MOST_QUEUED = 24; // waiting ones that are drawn behind them
const HOUR_S = 3600;

const $ = (selector, root = document) => root.querySelector(selector);
const body = (id) => $(`#${id} tbody`);

let state = null; // the newest document
let clockOffset = 0; // the browser's clock minus the server's, ms

// ---- text

/** Characters that act on whoever shows them (controls, bidirectional and zero-width ones) are spelled out. */
const plain = (text) =>
  text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
const list = (names, most = 5) =>
  names.slice(0, most).map(plain).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");

function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < HOUR_S) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 48 * HOUR_S) return `${Math.floor(s / HOUR_S)} h ${String(Math.floor((s % HOUR_S) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} days`;
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) [n, unit] = [n / 1024, unit + 1];
  return `${unit && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

/** So much of what a budget counts; below zero is debt. */
function amount(resource, n) {
  const size = Math.abs(n);
  const scale = size >= 100 ? 1 : size >= 1 ? 10 : 1000;
  const text = resource === "bytes" ? bytes(size) : String(Math.round(size * scale) / scale);
  return n < 0 ? `−${text}` : text;
}

const now = () => Date.now() - clockOffset;
const clock = (iso) => new Date(iso).toLocaleTimeString();

/** How a moment is told, by what it is the moment of. */
const TOLD = {
  age: (s) => duration(-s),
  ago: (s) => `${duration(-s)} ago`,
  expected: (s) => (s >= 0 ? `in ${duration(s)}` : `late by ${duration(-s)}`),
};

// ---- elements

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Writes only what differs: a selection, a tooltip and a screen reader's place outlive the update. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const show = (element, shown) => { element.hidden = !shown; };

function tellTime(time) {
  say(time, TOLD[time.dataset.kind]((Date.parse(time.dateTime) - now()) / 1000));
}

/** A moment in `parent`, relative, and exact when pointed at; nothing known is a dash. */
function sayTime(parent, iso, kind, unknown = "–") {
  if (!iso) return say(parent, unknown);
  let time = $("time", parent);
  if (!time) {
    time = make("time");
    parent.replaceChildren(time);
  }
  time.dataset.kind = kind;
  time.dateTime = iso;
  time.title = new Date(iso).toLocaleString();
  tellTime(time);
}

/** Makes the children of `parent` those of `items`, by key, moving no more than it must. Held, it only refreshes them. */
function reconcile(parent, items, keyOf, create, refresh) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let added = 0;
  items.forEach((item, n) => {
    const key = String(keyOf(item));
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      added += 1;
      if (held) return;
      child = create(item);
      child.dataset.key = key;
    }
    child.classList.remove("ended");
    refresh(child, item);
    if (!held && parent.children[n] !== child) parent.insertBefore(child, parent.children[n] ?? null);
  });
  for (const child of old.values()) {
    if (held) child.classList.add("ended");
    else child.remove();
  }
  return { added, ended: old.size };
}

/** Creates a row with cells of these classes, the labels for where there is no head. */
const row = (cells) => () => {
  const tr = make("tr");
  tr.setAttribute("role", "row");
  for (const [className, label] of cells) {
    const td = make("td", className);
    td.setAttribute("role", "cell");
    if (label) td.dataset.label = label;
    tr.append(td);
  }
  return tr;
};

const cell = (tr, name) => tr.getElementsByClassName(name)[0];

// ---- holding still

let held = false;
const REGIONS = ".scroll, #limits ul, #storms ul";
const points = matchMedia("(hover: hover)");

function looksAt(region) {
  return (points.matches && region.matches(":hover")) || region.matches(":focus-visible") || $(":focus-visible", region);
}

function hold() {
  const holds = [...document.querySelectorAll(REGIONS)].some(looksAt);
  if (holds === held) return;
  held = holds;
  if (state) render();
}

function sayHeld(changes) {
  const added = changes.reduce((sum, change) => sum + change.added, 0);
  const ended = changes.reduce((sum, change) => sum + change.ended, 0);
  const news = [added && `${added} new`, ended && `${ended} gone`].filter(Boolean).join(", ");
  say($("#held"), held ? `Held still while you look${news && `: ${news}`}.` : "");
}

// ---- the filter, kept in the fragment so that it can be linked to

const filterBox = $("#filter");

function readFragment() {
  const match = /^#filter=(.*)$/.exec(location.hash);
  try {
    filterBox.value = match ? decodeURIComponent(match[1]) : "";
  } catch {
    filterBox.value = "";
  }
}

function filterBy(text) {
  filterBox.value = text;
  history.replaceState(null, "", text ? `#filter=${encodeURIComponent(text)}` : location.pathname);
  if (state) render(true);
}

const wanted = () => filterBox.value.trim().toLowerCase();
const fits = (...names) => !wanted() || names.some((name) => name?.toLowerCase().includes(wanted()));

/** A name that filters by itself. */
function link(parent, name) {
  if (parent.firstChild) return;
  const a = make("a", "", plain(name));
  a.href = `#filter=${encodeURIComponent(name)}`;
  parent.append(a);
}

// ---- parts of the page

function sayPolicy() {
  const MODES = {
    enforce: "enforce: limits hold",
    shadow: "shadow: nothing is held back, refusals are only recorded",
    off: "off: nothing is looked at",
  };
  say($("#mode"), MODES[state.mode] ?? plain(state.mode));
  $("#mode").classList.toggle("loud", state.mode !== "enforce");
  say($("#drain"), state.draining ? "draining: no new clones" : "takes new clones");
  $("#drain").classList.toggle("loud", state.draining);
  show($("#uptime"), Boolean(state.started));
  sayTime($("#uptime span"), state.started, "age");
}

function sayHeadline() {
  const refused = state.refusals.reduce((sum, { count }) => sum + count, 0);
  const [running, waiting] = [state.running_total, state.waiting_total];
  const part = (className, text) => make("b", className, text);
  const line = running || waiting
    ? [part("running-text", `${count(running, "clone")} run${running === 1 ? "s" : ""}`), ", ",
       part(waiting ? "waiting-text" : "", `${waiting || "nobody"} wait${waiting > 1 ? "" : "s"}`)]
    : ["Nothing runs and nobody waits"];
  line.push(refused ? "; " : ".");
  if (refused) line.push(part("refused-text", `${refused} ${refused === 1 ? "was" : "were"} refused`), " in the last hour.");
  const headline = $("#headline");
  if (headline.textContent !== line.map((p) => p.textContent ?? p).join("")) headline.replaceChildren(...line);
}

function sayStorms() {
  const storms = state.storms.filter((storm) => fits(storm.repo, ...storm.users));
  show($("#storms"), storms.length > 0 || (held && !$("#storms").hidden));
  reconcile($("#storms ul"), storms, (s) => `${s.started} ${s.repo}`, () => {
    const li = make("li");
    li.append(make("p", "story"), make("p", "names"));
    return li;
  }, (li, storm) => {
    const lasted = (Date.parse(storm.ended ?? state.at) - Date.parse(storm.started)) / 1000;
    const by = storm.users.length ? ` by ${count(storm.users.length, "user")}` : "";
    const of = (rows) => rows.filter(({ repo }) => repo === storm.repo).length;
    const [run, wait] = [of(state.running), of(state.waiting)];
    const now = storm.ended ? `over since ${clock(storm.ended)}, ` : `${run} run${run === 1 ? "s" : ""}, ${wait} wait${wait === 1 ? "s" : ""}, `;
    say($(".story", li),
      `${count(storm.clones, "clone")} of ${plain(storm.repo)}${by} in ${duration(lasted)}; ${now}${storm.refused || "none"} refused`);
    const names = [["users", storm.users], ["programs", storm.agents], ["networks", storm.networks]];
    say($(".names", li), names.filter(([, all]) => all.length).map(([what, all]) => `${what}: ${list(all)}`).join(" · "));
    $(".names", li).title = `${new Date(storm.started).toLocaleString()} to ${storm.ended ? new Date(storm.ended).toLocaleString() : "now"}`;
    li.classList.toggle("over", Boolean(storm.ended));
  });
}

/** The seats of the fullest key, then those who wait. */
function drawSeats(cells, taken, limit) {
  const queued = Math.min(limit.waiting, MOST_QUEUED);
  const drawn = `${taken} ${limit.seats} ${limit.waiting}`;
  if (cells.dataset.drawn === drawn) return;
  cells.dataset.drawn = drawn;
  const parts = [];
  if (limit.seats <= MOST_CELLS) {
    for (let n = 0; n < limit.seats; n += 1) parts.push(make("i", n < taken ? "taken" : ""));
  } else {
    const svg = (tag, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      return element;
    };
    const bar = svg("svg", { class: "bar", viewBox: "0 0 100 14", preserveAspectRatio: "none" });
    bar.append(svg("rect", { class: "fill", width: Math.min(100, (100 * taken) / limit.seats), height: 14 }),
      svg("rect", { class: "rail", width: 100, height: 14 }));
    parts.push(bar);
  }
  if (queued) parts.push(make("span", "gap"));
  for (let n = 0; n < queued; n += 1) parts.push(make("i", "queued"));
  if (limit.waiting > queued) parts.push(make("span", "", `+${limit.waiting - queued}`));
  cells.replaceChildren(...parts);
}

function sayShadow() {
  show($("#limits .shadow"), Boolean(state.shadow));
  if (!state.shadow) return;
  const { running, waiting, refused_last_hour: refused } = state.shadow;
  say($("#limits .shadow"), `In shadow ${count(running, "clone")} would run, ${waiting} would wait; ${refused} would have been refused in the last hour.`);
}

const watches = ({ mode }) => (mode === "shadow" ? "only watches; " : "");

function sayLimits() {
  sayShadow();
  const [none, budgets] = [state.limits.length === 0, state.quotas.length > 0];
  show($("#limits .empty"), none && !budgets);
  show($("#limits .budgets"), none && budgets);
  reconcile($("#limits ul"), state.limits, (limit) => limit.name, (limit) => {
    const li = make("li");
    const name = make("p", "name", plain(limit.name));
    name.append(make("span", "per"), make("span", "busiest"));
    const cells = make("div", "cells");
    cells.setAttribute("aria-hidden", "true");
    const figures = make("p", "figures");
    figures.append(make("b"), make("span", "waiting-text"), make("span", "refused-text"));
    li.append(name, cells, figures);
    return li;
  }, (li, limit) => {
    const whole = limit.per === "global";
    const taken = whole ? limit.in_use : (limit.busiest?.in_use ?? 0);
    const adapts = limit.range ? `; adapts: ${limit.seats} of ${limit.range.min} to ${limit.range.max} seats` : "";
    say($(".per", li), watches(limit) + (whole ? "in all" : `per ${limit.per}; ${limit.in_use} in use together`) + adapts);
    const key = limit.busiest?.key ?? "hidden";
    say($(".busiest", li), whole ? "" : `fullest: ${limit.busiest ? plain(key) : "none"}`);
    drawSeats($(".cells", li), taken, limit);
    say($("b", li), `${taken} of ${count(limit.seats, "seat")}`);
    say($(".waiting-text", li), limit.waiting ? `${limit.waiting} wait${limit.waiting === 1 ? "s" : ""}` : "");
    say($(".refused-text", li), limit.refused_last_hour ? `${limit.refused_last_hour} refused` : "");
  });
}

function sayWho(tr, item) {
  cell(tr, "repo").title = item.agent ? plain(item.agent) : "";
  say(cell(tr, "repo"), plain(item.repo));
  say(cell(tr, "who"), [item.user, item.ip].filter(Boolean).map(plain).join(", ") || "–");
  cell(tr, "who").title = item.agent ? plain(item.agent) : "";
  say(cell(tr, "what"), plain(item.shape));
  say(cell(tr, "seats"), String(item.seats));
}

/** A list of clones: which are shown, how many there are, and what is said when there are none. */
function sayClones(id, items, total, create, refresh, nothing) {
  const section = $(`#${id}`);
  const shown = items.filter((item) => fits(item.repo, item.user));
  const change = reconcile(body(id), shown, (item) => item.id, create, refresh);
  say($(".count", section), wanted() ? `${shown.length} of ${total}` : String(total));
  const rows = body(id).children.length;
  show($(".scroll", section), rows > 0);
  show($(".empty", section), rows === 0);
  say($(".empty", section), total && wanted() ? "None of them fits the filter." : nothing);
  show($(".more", section), total > items.length);
  say($(".more", section), `${count(total - items.length, "more is", "more are")} not listed.`);
  return change;
}

const runningRow = row([["repo"], ["who"], ["what"], ["num seats", "seats"], ["num bytes", "sent"], ["num rate", "at"], ["num age", "age"], ["num end", "ends"]]);
const waitingRow = row([["repo"], ["who"], ["what"], ["num seats", "seats"], ["num place", "place"], ["limits", "for"], ["num age", "since"], ["num end", "starts"]]);

const NOTHING_RUNS = {
  enforce: "Clone something through the gate (the address under listen in the configuration), and it appears here.",
  shadow: "Clone something through the gate, and it appears here. In shadow mode nothing is held back.",
  off: "In this mode no request is looked at, so nothing can be shown. Set mode to shadow or enforce.",
};

function sayRunning() {
  return sayClones("running", state.running, state.running_total, runningRow, (tr, item) => {
    sayWho(tr, item);
    say(cell(tr, "bytes"), bytes(item.response_bytes));
    say(cell(tr, "rate"), item.rate_bps === null ? "–" : `${bytes(item.rate_bps)}/s`);
    sayTime(cell(tr, "age"), item.since, "age");
    sayTime(cell(tr, "end"), item.expected_end, "expected");
  }, NOTHING_RUNS[state.mode] ?? "");
}

function sayWaiting() {
  return sayClones("waiting", state.waiting, state.waiting_total, waitingRow, (tr, item) => {
    sayWho(tr, item);
    say(cell(tr, "place"), String(item.position));
    say(cell(tr, "limits"), list(item.limits) || "–");
    sayTime(cell(tr, "age"), item.since, "age");
    sayTime(cell(tr, "end"), item.expected_start, "expected");
  }, "Nobody waits.");
}

const WHY = {
  full: "full, and nobody may wait",
  queue_full: "full, and so is the queue",
  timeout: "no seat in time",
  forecast: "could not have started in time",
  quota: "budget used up",
  draining: "this process is draining",
};

function sayRefusals() {
  const total = state.refusals.reduce((sum, refusal) => sum + refusal.count, 0);
  say($("#refusals .count"), total ? String(total) : "");
  reconcile(body("refusals"), state.refusals, (r) => `${r.why} ${r.limit}`, row([["limit"], ["why"], ["num refused"]]), (tr, refusal) => {
    say(cell(tr, "limit"), plain(refusal.limit ?? "–"));
    say(cell(tr, "why"), WHY[refusal.why] ?? plain(refusal.why));
    say(cell(tr, "refused"), String(refusal.count));
  });
  const rows = body("refusals").children.length;
  show($("#refusals .scroll"), rows > 0);
  show($("#refusals .empty"), rows === 0);
}

const COUNTED = { cpu_seconds: "CPU seconds", memory_seconds: "GiB seconds" };

const quotaRow = () => {
  const tr = row([["name"], ["num income"], ["account"], ["num left"]])();
  cell(tr, "name").append(make("span"), make("small"));
  return tr;
};

function sayQuotas() {
  show($("#quotas"), state.quotas.length > 0);
  reconcile(body("quotas"), state.quotas, ({ name }) => name, quotaRow, (tr, quota) => {
    const { per, resource, rate, burst, worst } = quota;
    const whole = per === "global";
    say($("span", tr), plain(quota.name));
    const counted = COUNTED[resource] ?? plain(resource);
    say($("small", tr), `${watches(quota)}${counted} ${whole ? "in all" : `per ${per}`}, up to ${amount(resource, burst)}`);
    say(cell(tr, "income"), amount(resource, rate * 60));
    say(cell(tr, "account"), whole ? "–" : worst ? plain(worst.key) : "all are full");
    const left = worst ? worst.balance : burst;
    say(cell(tr, "left"), amount(resource, left));
    cell(tr, "left").classList.toggle("refused-text", left <= 0);
  });
}

const costRow = row([["name"], ["num clones"], ["num seat"], ["num cpu"], ["num sent"]]);

function sayCosts(id, costs) {
  const shown = costs.filter(({ key }) => fits(key));
  reconcile(body(id), shown, ({ key }) => key, costRow, (tr, cost) => {
    link(cell(tr, "name"), cost.key);
    say(cell(tr, "clones"), String(cost.clones));
    say(cell(tr, "seat"), duration(cost.seat_s));
    say(cell(tr, "cpu"), cost.cpu_s === null ? "–" : duration(cost.cpu_s));
    cell(tr, "cpu").title = cost.cpu_s === null ? "known only where packgate runs git itself" : "";
    say(cell(tr, "sent"), bytes(cost.bytes));
  });
  const rows = body(id).children.length;
  show($(`#${id} .scroll`), rows > 0);
  show($(`#${id} .empty`), rows === 0);
}

// ---- the plot

/** The next of 1, 2, 5, 10, 20, …: a scale that does not jump with each clone. */
function ceiling(n) {
  const ten = 10 ** Math.floor(Math.log10(Math.max(1, n)));
  return ten * [1, 2, 5, 10].find((step) => ten * step >= n);
}

const second = (point) => HOUR_S - (Date.parse(state.at) - Date.parse(point.at)) / 1000;

function drawPlot() {
  const points = state.history.filter((point) => second(point) >= 0);
  const most = (what) => points.reduce((max, point) => Math.max(max, point[what]), 0);
  const top = ceiling(Math.max(most("running"), most("waiting"), 1));
  const x = (point) => second(point).toFixed(0);
  const y = (n) => (100 - (100 * Math.min(n, top)) / top).toFixed(1);
  // Along zero there is no line: the pen is lifted.
  const steps = (what) => points.map((point, n) => {
    const level = point[what] || points[n - 1]?.[what];
    return `${n && level ? "H" : `M${x(point)} 100H`}${x(point)}V${y(point[what])}`;
  }).join("");
  const path = (what, d) => $(`.plot path.${what}`).setAttribute("d", d);
  const last = points.at(-1);
  const toNow = (what) => (last?.[what] ? `H${HOUR_S}` : "");
  path("running", `${steps("running")}${toNow("running")}${last?.running ? "V100" : ""}`);
  path("waiting", steps("waiting") + toNow("waiting"));
  path("refused", points.filter((p) => p.refused).map((p) => `M${x(p)} 100V${y(p.refused)}`).join(""));
  say($(".plot .top"), String(top));
  const refused = points.reduce((sum, point) => sum + point.refused, 0);
  const busiest = points.find((point) => point.waiting === most("waiting"));
  const waited = most("waiting") ? `, and ${most("waiting")} waited (at ${clock(busiest.at)})` : ", and nobody waited";
  say($("#plot-text"), most("running") || most("waiting") || refused
    ? `At most ${most("running")} ran at once${waited}; ${refused || "none"} ${refused === 1 ? "was" : "were"} refused.`
    : "Nothing ran, nobody waited, none was refused.");
}

function readPlot(event) {
  const box = $(".plot").getBoundingClientRect();
  const at = (HOUR_S * (event.clientX - box.left)) / box.width;
  const nearest = state?.history.reduce((best, point) => (!best || Math.abs(second(point) - at) < Math.abs(second(best) - at) ? point : best), null);
  const inside = event.type !== "pointerleave" && nearest;
  for (const what of ["running", "waiting", "refused"]) say($(`.key .${what}`), inside ? `${nearest[what]} ${what}` : what);
  $(".plot .cursor").setAttribute("d", inside ? `M${second(nearest).toFixed(0)} 0V100` : "");
  $(".plot").title = inside ? new Date(nearest.at).toLocaleString() : "";
}

// ---- putting it together

/** `moving`: whoever filters wants to see the rows change, wherever the pointer is. */
function render(moving = false) {
  const holds = held;
  if (moving) held = false;
  sayPolicy();
  sayHeadline();
  drawPlot();
  const hidden = state.identities_hidden;
  say($("#users .empty"), hidden
    ? "Users and addresses are hidden here (admin_hide_identities)."
    : "No user is known. Where user names come from is said under identity.user in the configuration.");
  sayStorms();
  sayLimits();
  const changes = [sayRunning(), sayWaiting()];
  sayRefusals();
  sayQuotas();
  sayCosts("repos", state.top.repos);
  sayCosts("users", state.top.users);
  sayHeld(changes);
  document.title = `packgate: ${state.running_total} run, ${state.waiting_total} wait`;
  show($("#view"), true);
  held = holds;
}

function receive(text) {
  state = { storms: [], quotas: [], ...JSON.parse(text) };
  clockOffset = Date.now() - Date.parse(state.at);
  fresh();
  render();
}

// ---- the connection

let token = sessionStorage.getItem("packgate-token");
let unlocked = () => {};

function fresh() {
  say($("#link"), "live");
  $("#link").className = "live";
  document.body.classList.remove("stale-page");
}

/** Said once, with the moment and not a growing age: a screen reader hears it once. */
function stale() {
  if ($("#link").className === "stale") return;
  say($("#link"), state ? `stale since ${clock(state.at)}` : "no connection");
  $("#link").className = "stale";
  document.body.classList.add("stale-page");
}

const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

/** Resolves when a token was typed in. */
function unlock(wrong) {
  sessionStorage.removeItem("packgate-token");
  say($("#link"), "locked");
  $("#link").className = "";
  show($("#view"), false);
  show($("#unlock"), true);
  say($("#unlock-error"), wrong ? "That is not the token." : "");
  $("#token").focus();
  return new Promise((resolve) => { unlocked = resolve; });
}

/** Reads one stream to its end; each `data:` line is a whole document. True if there is a token to try at once. */
async function follow(again) {
  const abort = new AbortController();
  let watchdog;
  const alive = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
  };
  try {
    alive();
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const response = await fetch("events", { headers, signal: abort.signal, cache: "no-store" });
    if (response.status === 401) {
      const wrong = token !== null;
      token = null;
      await unlock(wrong);
      return true;
    }
    if (!response.ok) throw new Error(`${response.status}`);
    let rest = "";
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return false;
      alive();
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) receive(line.slice(5));
        if (line.startsWith("retry:")) again.after = Number(line.slice(6)) || again.after;
      }
    }
  } finally {
    clearTimeout(watchdog);
  }
}

async function stayConnected() {
  const again = { after: 2000 };
  for (;;) {
    try {
      if (await follow(again)) continue;
    } catch {
      // Said below, and tried again: what there is to know is that it is stale.
    }
    stale();
    await pause(again.after);
  }
}

$("#unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("#token").value.trim();
  sessionStorage.setItem("packgate-token", token);
  $("#token").value = "";
  show($("#unlock"), false);
  unlocked();
});
$("#search").addEventListener("submit", (event) => event.preventDefault());
filterBox.addEventListener("input", () => filterBy(filterBox.value));
addEventListener("hashchange", () => {
  readFragment();
  if (state) render(true);
});
$(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("#running").focus();
});
for (const type of ["mouseover", "mouseout", "focusin", "focusout"]) {
  // The pseudo-classes are up to date only after the event.
  document.addEventListener(type, () => setTimeout(hold));
}
for (const type of ["pointermove", "pointerleave"]) $(".plot").addEventListener(type, readPlot);
setInterval(() => document.querySelectorAll("time").forEach(tellTime), 1000);

readFragment();
stayConnected();
