// The page of `lastword console`. It fetches /api/... and writes text, never markup: every record may be hostile.
"use strict";
const state = { version: 0, topics: new Map(), overview: null, sort: "garbage_bytes", descending: true, filter: "", shown: 100 };
const main = document.getElementById("main");
const path = location.pathname.split("/").map(decodeURIComponent);
const query = new URLSearchParams(location.search);

// ---- elements and formats

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, call] of Object.entries(value)) made.addEventListener(event, call);
    else if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}
function bytes(size) {
  if (size === null || size === undefined) return "?";
  let value = Math.abs(size), unit = "B";
  for (unit of ["B", "KiB", "MiB", "GiB", "TiB"]) { if (value < 999.5 || unit === "TiB") break; value /= 1024; }
  return (size < 0 ? "-" : "") + value.toFixed(value < 9.95 && unit !== "B" ? 1 : 0) + " " + unit;
}
function duration(ms) {
  for (const [unit, size, least] of [["d", 864e5, 3], ["h", 36e5, 2], ["m", 6e4, 2], ["s", 1e3, 1]]) {
    if (ms >= size * least) { const value = ms / size; return (value < 9.95 && value % 1 ? value.toFixed(1) : value.toFixed(0)) + " " + unit; }
  }
  return Math.max(0, Math.round(ms)) + " ms";
}
const number = (value) => (value === null || value === undefined ? "?" : value.toLocaleString("en"));
const time = (ms) => (ms === null || ms < 0 ? "no time" : new Date(Math.min(ms, 8.64e15)).toISOString().replace("T", " ").replace("Z", ""));
const plural = (count, noun) => number(count) + " " + noun + (count === 1 ? "" : "s");
const about = (text, exact) => (text === "?" || exact ? text : "~ " + text);
const age = (row, at) => (row.exact || row.counted_ms === null ? null : "as of " + duration(at - row.counted_ms) + " ago");
const topicLink = (name) => "/t/" + encodeURIComponent(name);
const recordsLink = (name, partition, rest) => topicLink(name) + "/" + partition + "/records" + (rest || "");
const known = (row, name) => (row.uncounted === row.partitions ? null : row[name]);
const command = (text) => element("code", { class: "cmd" }, text);

async function api(url) {
  const answer = await fetch("/api/" + url, { headers: { accept: "application/json" } });
  const body = await answer.json().catch(() => ({ error: answer.statusText }));
  if (!answer.ok) throw Object.assign(new Error(body.error || String(answer.status)), { remedy: body.remedy });
  return body;
}
function failure(error) {
  return element("div", { class: "notice bad", role: "alert" }, error.message, error.remedy ? element("div", {}, error.remedy) : null);
}
function button(label, call) {
  const made = element("button", { type: "button" }, label);
  made.addEventListener("click", async () => {
    made.disabled = true;
    try { await call(made); } catch (error) { made.after(failure(error)); } finally { made.disabled = false; }
  });
  return made;
}
function table(columns, rows, options) {
  const head = columns.map(([label, kind, sort]) => {
    const sorted = options.sort === sort && sort;
    const cell = element("th", { scope: "col", class: kind, "aria-sort": sort ? (sorted ? (options.descending ? "descending" : "ascending") : "none") : null });
    cell.append(sort ? element("button", { type: "button", "data-sort": sort, on: { click: () => options.onSort(sort) } }, label + (sorted ? (options.descending ? " ↓" : " ↑") : "")) : label);
    return cell;
  });
  const body = rows.map((cells) => element("tr", { "data-name": cells.name }, cells.map((cell, at) => {
    const [label, kind] = columns[at], first = at === 0 && options.heads !== false;
    return element(first ? "th" : "td", { scope: first ? "row" : null, class: (kind || "") + (cell === "" ? " none" : ""), "data-label": label }, cell);
  })));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.caption },
    element("table", { class: "cards" }, element("caption", {}, options.caption), element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
}
function bar(row) {
  if (known(row, "garbage_bytes") === null) return element("div", { class: "bar unknown" });
  const share = row.size_bytes ? (100 * row.garbage_bytes) / row.size_bytes : 0;
  return element("div", { class: "bar" }, element("span", { style: { width: share.toFixed(2) + "%" } }));
}
function facts(...pairs) {
  return element("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value, more]) => element("div", {}, element("dt", {}, name), element("dd", {}, value, more ? element("small", {}, more) : null))));
}
// Replace the content, and keep the focus and the open details: a change elsewhere must not move the reader.
function show(...content) {
  const focused = document.activeElement, key = focused && main.contains(focused) ? keyOf(focused) : null;
  const opened = [...main.querySelectorAll("details[open]")].map((details) => details.dataset.key);
  const kept = [...main.querySelectorAll("[data-keep]")];
  main.replaceChildren(...content.flat().filter(Boolean));
  for (const old of kept) { const place = main.querySelector('[data-keep="' + CSS.escape(old.dataset.keep) + '"]'); if (place && old.dataset.filled) place.replaceWith(old); }
  for (const details of main.querySelectorAll("details")) if (opened.includes(details.dataset.key)) details.open = true;
  if (key) [...main.querySelectorAll("a, button, input, select, summary, [tabindex]")].find((candidate) => keyOf(candidate) === key)?.focus({ preventScroll: true });
}
const keyOf = (node) => node.tagName + "|" + (node.id || node.getAttribute("href") || node.dataset.sort || node.getAttribute("aria-label") || node.textContent.slice(0, 80)) + "|" + (node.closest("[data-name]")?.dataset.name || "");

// ---- topics

const cleaning = (row) => row.topic + "-" + row.partition + (row.total_bytes ? ": " + bytes(row.done_bytes) + " of " + bytes(row.total_bytes) : "");
function runningView(rows) {
  return rows.map((row) => element("div", { class: "notice" }, element("progress", { "aria-label": "cleaning", ...(row.total_bytes ? { value: row.done_bytes, max: row.total_bytes } : {}) }), " cleaning now: " + cleaning(row)));
}
const isAbove = (row) => state.overview.drives.some((drive) => drive.is_above && row.drives.includes(drive.drive));
const rule = (row) => (row.strategy !== "generational" ? "" : isAbove(row) ? "; due: the drive is above its space target" : "; due when the drive is above its space target");
function why(row) {
  const parts = [];
  if (row.cleanable) parts.push(element("span", { class: "due" }, (row.partitions > 1 ? row.cleanable + " of " + row.partitions + " " : "") + "cleanable"), ": " + bytes(row.dirty_bytes) + " not clean" + rule(row));
  else parts.push(row.why || (row.compacts && row.size_bytes ? "no segment was closed since the last cleaning" : ""));
  for (const [count, label] of [[row.quarantined, "quarantined"], [row.unreadable, "unreadable"], [row.open_transactions, "with an open transaction"]])
    if (count) parts.push(element("div", { class: "warn" }, plural(count, "partition") + " " + label));
  return parts.length ? element("div", {}, parts) : "";
}
function topicsView() {
  const { totals, drives, at_ms, offline, set_aside } = state.overview;
  const value = (row) => (state.sort === "topic" || state.sort === "policy" ? row[state.sort] : known(row, state.sort) ?? -1);
  const rows = [...state.topics.values()].filter((row) => row.topic.includes(state.filter)).sort((a, b) => {
    const [x, y] = state.descending ? [value(b), value(a)] : [value(a), value(b)];
    return x < y ? -1 : x > y ? 1 : a.topic < b.topic ? -1 : 1;
  });
  const onSort = (sort) => { state.descending = state.sort === sort ? !state.descending : sort !== "topic"; state.sort = sort; render(); };
  const columns = [["Topic", "", "topic"], ["Partitions", "num", "partitions"], ["Size", "num", "size_bytes"], ["Live", "num", "live_bytes"], ["Garbage", "num", "garbage_bytes"], ["Records", "num", "records"], ["Newest", "num", "live_records"], ["Policy", "", "policy"], ["Due, or why not", "why"]];
  const cells = rows.slice(0, state.shown).map((row) => Object.assign([
    element("a", { href: topicLink(row.topic) }, row.topic),
    number(row.partitions), bytes(row.size_bytes), row.compacts ? about(bytes(known(row, "live_bytes")), row.exact) : "-",
    row.compacts ? element("div", {}, about(bytes(known(row, "garbage_bytes")), row.exact), age(row, at_ms) ? element("small", {}, " " + age(row, at_ms)) : null, bar(row)) : "-",
    about(number(known(row, "records")), row.exact), row.compacts ? about(number(known(row, "live_records")), row.exact) : "-", row.policy || "not set", why(row),
  ], { name: row.topic }));
  const filter = element("input", { type: "search", id: "filter", value: state.filter, on: { input: (event) => { state.filter = event.target.value; state.shown = 100; render(); } } });
  const uncounted = [...state.topics.values()].filter((row) => row.compacts && row.uncounted > row.quarantined + row.unreadable);
  const cost = uncounted.reduce((sum, row) => sum + row.size_bytes, 0);
  const countAll = uncounted.length ? button("Count " + plural(uncounted.length, "topic") + ": reads " + bytes(cost), async () => {
    for (const row of uncounted) { await api("t/" + encodeURIComponent(row.topic) + "/count"); await refresh(); }
  }) : null;
  const space = (drive) => (drive.uncounted || !drive.live_bytes ? "?" : about((drive.size_bytes / drive.live_bytes).toFixed(2), drive.exact));
  show(
    element("h1", {}, "Topics"),
    Object.entries(offline).map(([dir, text]) => element("div", { class: "notice bad" }, dir + " is offline: " + text)),
    set_aside.map((entry) => element("div", { class: "notice" }, "not served: " + entry.dir + "/" + entry.name)),
    facts(["Topics", number(totals.topics)], ["Partitions", number(totals.partitions)], ["Size", bytes(totals.size_bytes)],
      ["Garbage", totals.uncounted === totals.partitions && totals.partitions ? "?" : about(bytes(totals.garbage_bytes), totals.exact), totals.uncounted ? plural(totals.uncounted, "partition") + " not counted" : null],
      totals.quarantined ? ["Quarantined", number(totals.quarantined)] : null),
    rows.length || state.filter ? [
      element("div", { class: "tools" }, element("label", {}, "Filter by name", filter), countAll),
      table(columns, cells, { caption: plural(rows.length, "topic"), sort: state.sort, descending: state.descending, onSort }),
      rows.length > state.shown ? button("Show " + number(Math.min(rows.length - state.shown, 400)) + " more of " + number(rows.length), () => { state.shown += 400; render(); }) : null,
    ] : element("p", { class: "quiet" }, "No topics yet. ", command("lastword create DIR TOPIC --set cleanup.policy=compact")),
    element("h2", {}, "Drives"),
    table([["Drive"], ["Partitions", "num"], ["Size", "num"], ["Garbage", "num"], ["Bytes on disk per live byte", "num"], ["Space target", "num"], ["Budget of cleaning", "num"], ["Cleaning now"]],
      drives.map((drive) => [element("span", { class: "mono" }, drive.drive), number(drive.partitions), bytes(drive.size_bytes), about(drive.uncounted === drive.partitions && drive.partitions ? "?" : bytes(drive.garbage_bytes), drive.exact), space(drive), String(drive.space_target), drive.bytes_per_second === null ? "no limit" : bytes(drive.bytes_per_second) + "/s", drive.running.map(cleaning).join(", ") || "-"]),
      { caption: plural(drives.length, "drive") }));
}

// ---- one topic

function strata(part, groups) {
  const rows = part.segment_rows || [], total = rows.reduce((sum, row) => sum + row.size_bytes, 0);
  const weights = rows.map((row) => Math.max(row.size_bytes, total / 160, 1)), all = weights.reduce((a, b) => a + b, 0) || 1;
  const lefts = []; weights.reduce((left, weight) => (lefts.push((100 * left) / all), left + weight), 0);
  const x = (offset) => {
    if (!rows.length || offset <= rows[0].base_offset) return 0;
    let at = rows.length - 1; while (at > 0 && rows[at].base_offset > offset) at -= 1;
    const row = rows[at], span = Math.max(1, row.next_offset - row.base_offset);
    return lefts[at] + ((100 * weights[at]) / all) * Math.min(1, (offset - row.base_offset) / span);
  };
  const percent = (value) => value.toFixed(3) + "%";
  const boxes = rows.map((row, at) => {
    // A segment that the index does not have yet counts as live in its row, and is drawn as not counted.
    const unknown = row.garbage_bytes === null || (!row.exact && row.generation === null && row.size_bytes > 0), share = row.size_bytes && !unknown ? (100 * row.garbage_bytes) / row.size_bytes : 0;
    const title = (row.segments ? plural(row.segments, "segment") + " from " : "segment ") + number(row.base_offset) + ": " + bytes(row.size_bytes) + (unknown ? ", not counted" : ", " + about(bytes(row.garbage_bytes), row.exact) + " garbage") + (row.active ? ", active" : "");
    return element("div", { class: "box" + (unknown ? " unknown" : "") + (row.active ? " active" : ""), title, style: { left: percent(lefts[at]), width: percent((100 * weights[at]) / all) } }, share ? element("i", { style: { height: percent(share) } }) : null);
  });
  const state_of = (kind, from, to) => (to > from ? element("div", { class: "state " + kind, title: kind + ": " + number(from) + " to " + number(to), style: { left: percent(x(from)), width: percent(Math.max(0.3, x(to) - x(from))) } }) : null);
  const clean = part.first_dirty ?? part.log_start, marks = [
    ...(part.leases || []).map((lease) => [lease.position, "lease " + lease.name + (lease.lapsed ? " (lapsed)" : "")]),
    ...groups.map((position) => [position.offset, position.group]),
    ...(part.stable < part.log_end ? [[part.stable, "open transaction"]] : []),
  ].map(([offset, label]) => [x(offset), offset, label]).sort((a, b) => a[0] - b[0]);
  // Labels of neighbours are one above the other.
  const levels = []; marks.forEach((mark, at) => levels.push(at && mark[0] - marks[at - 1][0] < 22 ? levels[at - 1] + 1 : 0));
  const high = Math.max(0, ...levels), lines = marks.map(([left, offset, text], at) => element("div", { class: "mark" + (left > 70 ? " left" : ""), title: text + " at " + number(offset), style: { left: percent(left), top: -12 - 14 * levels[at] + "px" } }, text));
  const label = plural(rows.length, "segment") + " of " + part.topic + "-" + part.partition + ": " + bytes(part.size_bytes) + (part.garbage_bytes === null ? ", garbage not counted" : ", " + about(bytes(part.garbage_bytes), part.exact) + " garbage") + "; clean up to offset " + number(clean) + ", log end " + number(part.log_end);
  return element("div", {},
    element("div", { class: "strata", role: "img", "aria-label": label, style: { marginTop: 18 + 14 * high + "px" } }, boxes, state_of("clean", part.log_start, clean), state_of("dirty", clean, part.stable), state_of("undecided", part.stable, part.log_end), lines),
    element("div", { class: "ends" }, element("span", {}, number(part.log_start)), element("span", {}, number(part.log_end))));
}
function segmentTable(part) {
  const rows = (part.segment_rows || []).map((row) => [number(row.base_offset) + (row.active ? " (active)" : "") + (row.segments ? " +" + (row.segments - 1) : ""), bytes(row.size_bytes), about(bytes(row.live_bytes), row.exact), about(bytes(row.garbage_bytes), row.exact), about(number(row.records), row.exact), row.generation ?? "-", row.largest_timestamp === null ? "?" : time(row.largest_timestamp)]);
  return table([["Base offset"], ["Size", "num"], ["Live", "num"], ["Garbage", "num"], ["Records", "num"], ["Rewrites", "num"], ["Largest timestamp", "time"]], rows, { caption: "Segments of " + part.topic + "-" + part.partition });
}
function partView(part, groups, at_ms) {
  const details = element("details", { "data-key": "segments-" + part.partition, on: { toggle: () => { if (details.open && details.children.length === 1) details.append(segmentTable(part)); } } }, element("summary", {}, "Segments as a table"));
  const due = part.due === null ? null : part.due.action !== "clean" ? element("span", {}, "kept: " + (part.due.reasons[0] || "nothing to do")) : part.dirty_bytes ? element("span", { class: "due" }, "cleanable: " + bytes(part.dirty_bytes) + " not clean") : element("span", {}, "no segment was closed since the last cleaning");
  return element("section", { class: "part", "data-name": part.topic + "-" + part.partition },
    element("div", { class: "part-head" }, element("h3", {}, part.topic + "-" + part.partition),
      element("span", {}, bytes(part.size_bytes) + ", " + about(bytes(part.garbage_bytes), part.exact) + " garbage" + (age(part, at_ms) ? " " + age(part, at_ms) : "")),
      element("span", {}, about(number(part.records), part.exact) + " records, " + about(number(part.live_records), part.exact) + " newest"), due,
      part.quarantine ? element("strong", { class: "warn" }, "quarantined: " + part.quarantine) : part.problem && part.problem !== "not counted" ? element("strong", { class: "warn" }, part.problem) : null,
      element("a", { class: "end", href: recordsLink(part.topic, part.partition) }, "Records of " + part.partition)),
    part.segment_rows ? [strata(part, groups), leasesOf(part), details] : null);
}
// A lease holds tombstones alone: at most those of an exact count, and never more than the offsets that are not read.
function leasesOf(part) {
  const rows = (part.leases || []).map((lease) => {
    const most = part.exact ? Math.min(part.tombstones, lease.lag_offsets) : lease.lag_offsets;
    const held = lease.lapsed ? "lapsed, holds nothing back" : "holds back " + (most ? "at most " + plural(most, "tombstone") : "nothing") + ", lapses " + time(lease.lapses_ms);
    return element("li", {}, "lease " + lease.name + " at " + number(lease.position) + ": " + plural(lease.lag_offsets, "offset") + " behind, " + held);
  });
  return rows.length ? element("ul", { class: "quiet" }, rows) : null;
}
function chart(samples, at_ms) {
  if (!samples.length) return element("p", { class: "quiet" }, "No sample yet.");
  const first = samples[0][0], span = Math.max(1, at_ms - first), most = Math.max(1, ...samples.map((sample) => sample[1]));
  const points = (value) => samples.map((sample, at) => { const x0 = (600 * (sample[0] - first)) / span, x1 = at + 1 < samples.length ? (600 * (samples[at + 1][0] - first)) / span : 600, y = 100 - (100 * Math.max(0, value(sample))) / most; return x0.toFixed(1) + "," + y.toFixed(1) + " " + x1.toFixed(1) + "," + y.toFixed(1); }).join(" ");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), last = samples[samples.length - 1];
  for (const [key, value] of Object.entries({ viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img", "aria-label": "Bytes since " + time(first) + ": " + bytes(samples[0][1]) + " then, " + bytes(last[1]) + " now, garbage " + (last[2] < 0 ? "not counted" : bytes(last[2])) })) svg.setAttribute(key, value);
  for (const [kind, value] of [["area", (sample) => sample[1]], ["area dead", (sample) => sample[2]]]) {
    const polygon = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
    polygon.setAttribute("class", kind); polygon.setAttribute("points", "0,100 " + points(value) + " 600,100"); svg.append(polygon);
  }
  return element("div", { class: "chart" }, svg, element("div", { class: "ends" }, element("span", {}, time(first).slice(11, 19) + " UTC"), element("span", {}, "highest " + bytes(most)), element("span", {}, "now: " + bytes(last[1]) + (last[2] < 0 ? "" : ", " + bytes(last[2]) + " garbage"))));
}
function planTable(plans) {
  return table([["Partition"], ["Size", "num"], ["Read", "num"], ["Write", "num"], ["Frees", "num"], ["Why", "why"]],
    plans.map((plan) => { const clean = plan.action === "clean", leases = plan.reasons.slice(clean ? 0 : 1).filter((reason) => reason.code === "lease").map((reason) => element("div", {}, "lease: " + reason.text)); return [plan.topic + "-" + plan.partition, bytes(plan.total_bytes), clean ? about(bytes(plan.read_bytes), plan.exact) : "-", clean ? about(bytes(plan.write_bytes), plan.exact) : "-", clean ? about(bytes(plan.free_bytes), plan.exact) : "-", element("div", {}, clean ? "due: rewrites " + plan.segments + " of " + plural(plan.total_segments, "segment") : "kept: " + (plan.reasons.map((reason) => reason.text)[0] || "nothing to do"), leases)]; }), { caption: "Dry run of what is due; nothing was changed" });
}
async function topicView() {
  const name = path[2], url = "t/" + encodeURIComponent(name), first = Number(query.get("first")) || 0;
  const topic = await api(url + "?first=" + first), row = topic.row, at = topic.at_ms;
  if (state.positions === undefined) state.positions = await positionsOf(name);
  const positions = state.positions;
  if (!row.topic) return show(element("h1", {}, name), element("p", { class: "quiet" }, "Waiting for the first poll."));
  const planned = element("div", { "data-keep": "plan" }), size = bytes(row.size_bytes);
  const explained = element("div", { "data-keep": "explain" });
  const fill = (place, content) => { place.replaceChildren(content); place.dataset.filled = "1"; };
  const next = topic.numbers.find((partition) => partition > Math.max(...topic.partitions.map((part) => part.partition)));
  const cleanings = topic.cleanings;
  show(
    element("h1", {}, element("a", { href: "/" }, "Topics"), " / ", name),
    facts(["Size", size], row.compacts ? ["Live", about(bytes(known(row, "live_bytes")), row.exact)] : null, row.compacts ? ["Garbage", about(bytes(known(row, "garbage_bytes")), row.exact), age(row, at)] : null,
      ["Records", about(number(known(row, "records")), row.exact)], row.compacts ? ["Newest", about(number(known(row, "live_records")), row.exact)] : null, ["Tombstones", about(number(known(row, "tombstones")), row.exact)], ["Segments", number(row.segments)], ["Policy", row.policy || "not set"]),
    element("div", { "data-keep": "running" }, runningView(topic.running)),
    element("div", { class: "tools" },
      button((row.exact ? "Count again" : "Count exactly") + ": reads up to " + size, async () => { await api(url + "/count"); await refresh(true); }),
      row.compacts ? button("Dry run of the next cleaning: reads up to " + size, async () => { const result = await api(url + "/plan"); fill(main.querySelector('[data-keep="plan"]'), planTable(result.plans)); }) : null),
    planned,
    element("h2", {}, "Strata"),
    element("ul", { class: "legend" }, [["l", "live"], ["d", "garbage"], ["u", "not counted"], ["a", "active segment"], ["state clean", "clean part"], ["state dirty", "dirty part"], ["state undecided", "undecided: open transaction"], ["m", "lease or group"]].map(([kind, label]) => element("li", {}, element("i", { class: kind }), label))),
    topic.partitions.map((part) => partView(part, positions.filter((position) => position.topic === name && position.partition === part.partition), at)),
    element("div", { class: "tools" }, first ? element("a", { href: topicLink(name) }, "First partitions") : null, next !== undefined ? element("a", { href: topicLink(name) + "?first=" + next }, "Partitions from " + next) : null),
    element("div", { class: "cols" },
      element("section", {}, element("h2", {}, "Bytes since the page began"), chart(topic.samples, at)),
      element("section", {}, element("h2", {}, "Why is a key kept?"), explainForm(name, url, size, explained), explained)),
    cleanings === null ? null : [element("h2", {}, "Cleanings"), cleanings.length ? table([["Time", "time"], ["Partition"], ["Result"], ["Read", "num"], ["Wrote", "num"], ["Freed", "num"]], cleanings.reverse().map((done) => [time(done.time_ms), done.topic + "-" + done.partition, done.error || done.result, ...["read_bytes", "written_bytes", "freed_bytes"].map((field) => (done.round ? bytes(done.round[field]) : "-"))]), { caption: "Cleanings of this process, the newest first" }) : element("p", { class: "quiet" }, "This process has not cleaned the topic yet.")],
    element("h2", {}, "Commands"),
    element("ul", { class: "commands" }, [["Clean it now", row.compacts ? "clean" : null], ["Compact it", row.policy ? null : "policy"], ["Why it is or is not due", "explain"], ["End a transaction", row.open_transactions ? "transactions" : null], ["Leave quarantine", row.quarantined ? "retry" : null], ["Read it", "read"]].filter((pair) => pair[1]).map(([label, key]) => element("li", {}, element("span", {}, label), command(topic.commands[key])))));
}
function explainForm(name, url, size, place) {
  const input = element("input", { id: "explain-key", autocomplete: "off", value: query.get("key") });
  const run = button("Explain: reads up to " + size, async () => { const target = main.querySelector('[data-keep="explain"]') || place; target.replaceChildren(versions(await api(url + "/explain?key=" + encodeURIComponent(input.value)))); target.dataset.filled = "1"; });
  return element("div", { class: "tools" }, element("label", {}, "Key, as the records show it", input), run);
}
function versions(found) {
  const rows = found.versions.map((version) => [element("a", { href: recordsLink(found.topic, found.partition, "?offset=" + version.offset) }, number(version.offset)), time(version.timestamp), version.kept ? "kept" : "removable", version.text]);
  return element("div", {}, rows.length ? table([["Offset", "num"], ["Time", "time"], ["State"], ["Rule", "why"]], rows, { caption: found.topic + "-" + found.partition + ": records of " + found.key }) : element("p", {}, "No record of " + found.key + ": it was never written, or was deleted and cleaned."), element("p", { class: "quiet" }, found.verdict));
}

// ---- records

function recordTable(rows, read) {
  return table([["Offset", "num"], ["Time", "time"], ["Key", "text"], ["Value", "text"], ["Bytes", "num"]], rows.map((record) => {
    const headers = record.headers.map(([key, value]) => key + "=" + value).join("  ");
    const value = element("div", { class: "cut mono" + (record.tombstone ? " tomb" : "") }, record.value_text);
    const long = record.value_text.length > 240 || record.key_text.length > 120 || headers, cut = record.key_text.endsWith("…") || record.value_text.endsWith("…");
    const more = long ? element("details", {}, element("summary", {}, cut ? "more" : "all of it"), headers ? element("div", { class: "mono" }, "headers: " + headers) : null, cut ? element("div", { class: "quiet" }, "cut: the key has " + number(record.key_bytes) + " bytes, the value " + number(record.value_bytes) + "; in a shell: ", command(read + " --start " + record.offset + " -n 1 --json")) : null) : null;
    if (more) more.addEventListener("toggle", () => value.closest("tr").classList.toggle("open", more.open));
    return [number(record.offset), time(record.timestamp), element("div", { class: "cut mono" + (record.key_text === "<no key>" ? " tomb" : "") }, record.key_text), element("div", {}, value, more), element("span", { title: "key and value" }, bytes(record.key_bytes + record.value_bytes))];
  }), { caption: plural(rows.length, "record") });
}
async function recordsView() {
  const name = path[2], partition = path[3], view = query.get("view") || "log", url = "t/" + encodeURIComponent(name);
  const topic = await api(url + "?first=" + partition), part = topic.partitions[0] || {}, size = bytes(part.size_bytes);
  const go = (changes) => { const next = new URLSearchParams(query); for (const [key, value] of Object.entries(changes)) value === null || value === "" ? next.delete(key) : next.set(key, value); location.search = next; };
  const input = (id, label, value, hint) => element("label", {}, label, element("input", { id, value, placeholder: hint, autocomplete: "off" }));
  const select = (id, label, options, chosen) => element("label", {}, label, element("select", { id }, options.map(([value, text]) => element("option", { value, selected: String(value) === String(chosen) }, text))));
  const form = element("form", { class: "tools", on: { submit: (event) => {
    event.preventDefault();
    const value = (id) => document.getElementById(id).value;
    const target = new URLSearchParams({ offset: value("start"), view: value("view"), key: value("key") });
    for (const [key, text] of [...target]) if (!text || text === "log") target.delete(key);
    location.href = recordsLink(name, value("partition"), target.size ? "?" + target : "");
  } } },
    select("partition", "Partition", topic.numbers.map((at) => [at, at]), partition),
    select("view", "View", [["log", "all records"], ["newest", "newest of each key: reads " + size], ["changes", "changes: reads " + size]], view),
    input("start", "From", query.get("offset"), "last 50; 4711; 90m; 2026-11-20T10:00Z"),
    input("key", "Key", query.get("key"), part.indexed_to === null || part.indexed_to === undefined ? "reads up to " + bytes(topic.row.size_bytes) : "by the key index"),
    element("button", {}, "Show"));
  const title = element("h1", {}, element("a", { href: "/" }, "Topics"), " / ", element("a", { href: topicLink(name) }, name), " / records of " + partition);
  show(title, form, element("p", { class: "quiet", role: "status" }, "Reading"));
  const request = new URLSearchParams({ view });
  for (const key of ["offset", "before"]) if (query.get(key)) request.set(key, query.get(key));
  let found;
  try { found = await api(query.get("key") ? url + "/get?key=" + encodeURIComponent(query.get("key")) : url + "/" + encodeURIComponent(partition) + "/records?" + request); } catch (error) { return show(title, form, failure(error)); }
  const rows = found.records, byKey = query.get("key");
  const held = found.stable < found.log_end ? element("div", { class: "notice" }, "A transaction is open since offset " + number(found.stable) + ": records from there to " + number(found.log_end - 1) + " are not decided and not shown. ", element("a", { href: "/transactions" }, "Transactions")) : null;
  const pages = byKey || !rows.length ? null : element("div", { class: "tools" },
    rows[0].offset > found.log_start && view === "log" ? button("Older", () => go({ before: rows[0].offset, offset: null })) : null,
    found.next < found.log_end ? button("Newer", () => go({ offset: found.next, before: null })) : null,
    element("span", { class: "quiet" }, "offsets " + number(found.log_start) + " to " + number(found.log_end)));
  show(title, form, held, rows.length ? recordTable(rows, topic.commands.read + " -p " + partition) : element("p", { class: "quiet" }, byKey ? "The key has no value: it was never written, or was deleted." : "No records here."), pages,
    byKey ? [element("h2", {}, "Why is it kept?"), explainForm(name, url, size, element("div", { "data-keep": "explain" })), element("div", { "data-keep": "explain" })] : null,
    element("h2", {}, "Commands"), element("ul", { class: "commands" }, element("li", {}, element("span", {}, "The same in a shell"), command(topic.commands.read + " -p " + partition + (byKey ? " --view newest --key KEY" : view !== "log" ? " --view " + view : query.get("before") ? " --last 50 --end " + query.get("before") : query.get("offset") ? " --start " + query.get("offset") + " -n 50" : " --last 50")))));
}

// ---- groups, transactions, quarantine

const AUTOMATIC_BYTES = 1 << 20; // of an internal topic, read without a button
async function positionsOf(name) {
  const { read_bytes } = await api("groups");
  return read_bytes && read_bytes <= AUTOMATIC_BYTES ? (await api("groups?read=1&topic=" + encodeURIComponent(name))).groups : [];
}
async function costly(title, url, what, draw) {
  let found = await api(url);
  const run = async () => { found = await api(url + "?read=1"); show(element("h1", {}, title), draw(found)); };
  if (found[url] !== null) return show(element("h1", {}, title), draw(found));
  if (found.read_bytes <= AUTOMATIC_BYTES || state.readOnce === url) { state.readOnce = url; return run(); }
  show(element("h1", {}, title), found.held ? heldTable(found.held) : null, element("p", {}, button("Read " + what + ": " + bytes(found.read_bytes), () => { state.readOnce = url; return run(); })));
}
const groupsView = () => costly("Groups", "groups", "__consumer_offsets", (found) => {
  if (!found.groups.length) return element("p", { class: "quiet" }, "No group has committed a position here.");
  return table([["Group"], ["Partition"], ["Members", "num"], ["Position", "num"], ["Log end", "num"], ["Behind", "num"], ["Lag", "num"], ["Committed", "time"]],
    found.groups.map((row) => [row.group, element("a", { href: recordsLink(row.topic, row.partition, "?offset=" + row.offset) }, row.topic + "-" + row.partition), row.members ?? "-", number(row.offset), number(row.log_end), number(row.lag_offsets), row.lag_ms === null ? "-" : duration(row.lag_ms), time(row.committed_ms)]), { caption: plural(new Set(found.groups.map((row) => row.group)).size, "group") + "; lag is the age of the first batch that is not read" });
});
const heldTable = (held) => table([["Partition"], ["Held from", "num"], ["Log end", "num"]], held.map((row) => [element("a", { href: topicLink(row.topic) }, row.topic + "-" + row.partition), number(row.stable), number(row.log_end)]), { caption: plural(held.length, "partition") + " with an open transaction" });
const transactionsView = () => costly("Transactions", "transactions", "the state of the coordinators", (found) => {
  const errors = found.errors.map((text) => element("div", { class: "notice bad" }, text));
  if (!found.transactions.length) return [errors, element("p", { class: "quiet" }, "No transaction is open.")];
  return [errors, element("p", {}, "Committed readers stay at the first offset of an open transaction, and nothing behind it is cleaned. A transaction that no coordinator ends hangs."),
    table([["Partition"], ["From", "num"], ["Producer", "num"], ["Epoch", "num"], ["Transactional id"], ["State"], ["Open since"], ["Not cleaned", "num"], ["To end it, if it hangs", "why"]],
      found.transactions.map((row) => [element("a", { href: topicLink(row.topic) }, row.topic + "-" + row.partition), number(row.first_offset), String(row.producer_id), String(row.epoch), row.transactional_id || "-", row.state || "unknown", time(row.timestamp) + " (" + duration(row.age_ms) + ")", bytes(row.held_bytes), command(row.abort)]), { caption: plural(found.transactions.length, "open transaction") })];
});
async function quarantineView() {
  const found = (await api("quarantine")).partitions;
  show(element("h1", {}, "Quarantine"), found.length ? [element("p", {}, "A partition that failed a check is not cleaned until it is verified. It is read and appended as before."),
    table([["Partition"], ["State"], ["Reason", "why"], ["Restore the file from a copy, then", "why"]],
      found.map((row) => [element("a", { href: topicLink(row.topic) }, row.topic + "-" + row.partition), element("span", { class: "warn" }, row.problem), row.reason || "it cannot be read: check it", element("div", {}, element("div", {}, command(row.check)), row.problem === "quarantined" || row.reason ? element("div", {}, command(row.retry)) : null)]), { caption: plural(found.length, "partition") })] : element("p", { class: "quiet" }, "No partition is in quarantine, and each can be read."));
}

// ---- live

const names = { t: path[4] === "records" ? "records" : "topic", groups: "groups", transactions: "transactions", quarantine: "quarantine" };
const view = names[path[1]] || "topics";
const views = { topics: topicsView, topic: topicView, records: recordsView, groups: groupsView, transactions: transactionsView, quarantine: quarantineView };
const live = document.getElementById("live"), progress = document.getElementById("progress");
function status(text, kind) { live.className = "live " + kind; if (live.textContent !== text) live.textContent = text; }
async function render() { try { await views[view](); } catch (error) { show(element("h1", {}, path[2] || "lastword"), failure(error)); } }
function badge(id, count) { const place = document.getElementById(id); place.hidden = !count; place.textContent = count; }
let refreshing = null, wanted = false, drawn = { at: 0, version: 0 };
// Records do not move while they are read; groups and transactions are read again at most every ten seconds.
function isDue() {
  if (view === "records") return false;
  if (view === "topic") return (state.topics.get(path[2]) || {}).version !== drawn.version;
  return (view !== "groups" && view !== "transactions") || Date.now() - drawn.at > 10000;
}
function refresh(forced) {
  if (refreshing) { wanted = true; return refreshing; }
  refreshing = (async () => {
    do {
      wanted = false;
      const overview = await api("overview?since=" + state.version);
      if (overview.names) { const present = new Set(overview.names); for (const name of state.topics.keys()) if (!present.has(name)) state.topics.delete(name); }
      for (const row of overview.topics) state.topics.set(row.topic, row);
      state.version = overview.version; state.overview = overview;
      document.getElementById("dirs").textContent = overview.dirs.join(", ");
      badge("open-count", overview.totals.open_transactions); badge("quarantine-count", overview.totals.quarantined);
      if (forced || isDue()) { drawn = { at: Date.now(), version: (state.topics.get(path[2]) || {}).version }; await render(); }
    } while (wanted);
  })().finally(() => { refreshing = null; });
  return refreshing;
}
const asOf = () => "the figures are of " + (state.overview ? time(state.overview.at_ms).slice(11, 19) + " UTC" : "before");
function listen() {
  const events = new EventSource("/api/events");
  events.onmessage = (event) => {
    const now = JSON.parse(event.data);
    if (now.failed) status("not polled: " + now.failed + "; " + asOf(), "off");
    else status("live, polled every " + duration(1000 * now.poll_seconds), "on");
    progress.hidden = !now.read;
    if (now.read) progress.textContent = now.read.path.replace("/api/t/", "").replace("/", ": ") + ": " + bytes(now.read.done_bytes) + " of " + bytes(now.read.total_bytes);
    const place = main.querySelector('[data-keep="running"]');
    if (place) place.replaceChildren(...runningView(now.running.filter((row) => row.topic === path[2])));
    if (now.version !== state.version) refresh().catch(() => {});
  };
  events.onerror = () => status("not connected: " + asOf(), "off");
}
for (const link of document.querySelectorAll("nav a")) if (link.dataset.view === view || (link.dataset.view === "topics" && (view === "topic" || view === "records"))) link.setAttribute("aria-current", "page");
document.title = (path[2] ? path[2] + " - " : view === "topics" ? "" : view + " - ") + "lastword console";
status("connecting", "");
refresh(true).catch((error) => main.replaceChildren(failure(error))).finally(listen);
