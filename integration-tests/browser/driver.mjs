// Drives Chromium for `src/browser.rs`: one JSON command per line on standard input, one JSON answer per line on standard
// output. The test decides what happens; this only passes it on.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [tools, chromium] = process.argv.slice(2);
const require = createRequire(`${tools}/`);
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const browser = await require("playwright-core").chromium.launch({
  executablePath: chromium,
  // As root there is no sandbox; the rest keeps the browser from calling home.
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});
let page;
const seen = { console: [], requests: [] };

const commands = {
  async open({ url, scheme, width, height }) {
    await page?.context().close();
    const context = await browser.newContext({ colorScheme: scheme, viewport: { width, height }, reducedMotion: "reduce" });
    page = await context.newPage();
    page.on("console", (message) => seen.console.push(`${message.type()}: ${message.text()}`));
    page.on("pageerror", (error) => seen.console.push(`uncaught: ${error.message}`));
    page.on("dialog", (dialog) => { seen.console.push(`dialog: ${dialog.message()}`); return dialog.dismiss(); });
    page.on("request", (request) => seen.requests.push(request.url()));
    await page.goto(url);
  },
  reload: () => page.reload(),
  eval: ({ script }) => page.evaluate(script),
  point: ({ selector }) => page.hover(selector),
  away: () => page.mouse.move(1, 1),
  press: ({ key }) => page.keyboard.press(key),
  type: ({ text }) => page.keyboard.type(text),
  resize: ({ width, height }) => page.setViewportSize({ width, height }),
  async axe() {
    await page.evaluate(axe);
    const { violations } = await page.evaluate("axe.run()");
    return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html).join(" ")}`);
  },
  seen: () => seen,
  screenshot: ({ path }) => page.screenshot({ path }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await commands[command](options)) ?? null };
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await browser.close();
