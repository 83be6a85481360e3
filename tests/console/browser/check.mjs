// Open each view of a running page in Chromium under its own CSP, and print what it shows as lines of JSON.
// Arguments: the folder with node_modules, the address with the token, a folder for pictures or "-", and
// variants such as 1600-light. $VIEWS has the paths. A line with "ready" waits for a line of stdin.
import { createRequire } from "node:module";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createInterface } from "node:readline";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [modules, address, pictures, ...variants] = process.argv.slice(2);
const require = createRequire(join(modules, "node_modules", "x.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const origin = new URL(address).origin;
const VIEWS = JSON.parse(process.env.VIEWS);
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const print = (row) => process.stdout.write(JSON.stringify(row) + "\n");
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const ready = async (name) => { print({ ready: name }); await input.next(); };

const profile = mkdtempSync(join(tmpdir(), "lastword-browser-"));
const context = await chromium.launchPersistentContext(profile, { executablePath: process.env.CHROMIUM || "/usr/bin/chromium", headless: true, args: FLAGS });
const page = context.pages()[0];
let problems = [];
page.on("dialog", async (dialog) => { problems.push("dialog: " + dialog.message()); await dialog.dismiss(); });
page.on("pageerror", (error) => problems.push("error: " + error.message));
page.on("console", (message) => { if (message.type() === "error") problems.push("console: " + message.text()); });
page.on("request", (request) => { if (!request.url().startsWith(origin) && !request.url().startsWith("data:")) problems.push("outside: " + request.url()); });

const settled = async () => { await page.waitForSelector("main h1"); await page.waitForFunction(() => document.getElementById("live").classList.contains("on")); await page.waitForFunction(() => !/^(Loading|Reading)$/m.test(document.querySelector("main").innerText)); };
const open = async (path) => { await page.goto(origin + path); await settled(); };
const axeOf = async () => { await page.evaluate(axe); const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] })); return found.violations.map((violation) => violation.id + ": " + violation.nodes.map((node) => node.target.join(" ") + " " + (node.any[0]?.message || "")).slice(0, 3).join("; ")); };

await page.goto(address);
const session = await context.newCDPSession(page);
await session.send("Performance.enable", { timeDomain: "threadTicks" });
const cpu = async () => (await session.send("Performance.getMetrics")).metrics.find((metric) => metric.name === "TaskDuration").value;
for (const variant of variants) {
  const [width, scheme] = variant.split("-");
  await page.setViewportSize({ width: Number(width), height: 900 });
  await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
  for (const [view, path] of Object.entries(VIEWS)) {
    problems = [];
    await open(path);
    const cpuSeconds = await cpu(); // since the page was opened
    const sentBytes = await page.evaluate(() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind)).reduce((sum, entry) => sum + entry.transferSize, 0));
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    const text = await page.evaluate(() => document.body.innerText), injected = await page.evaluate(() => document.querySelectorAll("main img, main script, main b").length);
    if (pictures !== "-" && view !== "empty" && width !== "1920") await page.screenshot({ path: join(pictures, `${view}-${variant}.png`), fullPage: true, clip: { x: 0, y: 0, width: Number(width), height: view === "records" ? 560 : 1000 } });
    print({ view, variant, cpuSeconds, sentBytes, overflow, text, injected, violations: await axeOf(), problems });
  }
}
if (process.env.ACTIONS) {
  problems = [];
  await page.setViewportSize({ width: 1600, height: 900 });
  await open("/");
  const names = () => page.$$eval("tbody tr[data-name]", (rows) => rows.map((row) => row.dataset.name));
  const byGarbage = await names();
  await page.focus('button[data-sort="topic"]'); await page.keyboard.press("Enter");
  print({ action: "sort", byGarbage, byName: await names(), sorted: await page.getAttribute('th:has(button[data-sort="topic"])', "aria-sort"), focused: await page.evaluate(() => document.activeElement.dataset.sort) });
  await page.fill("#filter", "hos"); print({ action: "filter", names: await names(), focused: await page.evaluate(() => document.activeElement.id) });
  await ready("live");
  await page.fill("#filter", "events"); await page.waitForFunction(() => /\b17\b/.test(document.querySelector("main").innerText), null, { timeout: 30000 });
  print({ action: "live", text: await page.innerText("main") });
  await open("/t/users");
  await page.click("button:has-text('Count')"); await page.waitForFunction(() => document.querySelector("main").innerText.includes("Count again"));
  await page.click("button:has-text('Dry run')"); await page.waitForSelector("text=Dry run of what is due");
  await page.fill("#explain-key", "user-003"); await page.click("button:has-text('Explain')"); await page.waitForSelector("text=records of user-003");
  await page.click("summary"); await page.waitForSelector("text=Segments of users-0");
  print({ action: "topic", text: await page.innerText("main"), violations: await axeOf() });
  await open("/t/hostile/0/records"); await page.click("summary"); print({ action: "hostile", text: await page.innerText("main"), violations: await axeOf() });
  await open("/t/users/0/records"); await page.click("button:has-text('Older')"); await settled(); print({ action: "older", url: page.url() });
  await page.fill("#key", "user-003"); await page.keyboard.press("Enter"); await page.waitForSelector("text=1 record"); print({ action: "key", text: await page.innerText("main") });
  print({ action: "problems", problems });
  await open("/");
  await ready("gone");
  await page.waitForFunction(() => document.getElementById("live").classList.contains("off"), null, { timeout: 30000 });
  print({ action: "gone", text: await page.innerText("#live") });
}
await context.close();
rmSync(profile, { recursive: true, force: true });
process.exit(0);
