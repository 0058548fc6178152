// isomorphic-git as a client: `clone URL DIR`, `shallow URL DIR`, `fetch DIR`, `push DIR`, `version`.
import fs from "node:fs";
import { createRequire } from "node:module";

// The package is installed outside of the source tree.
const require = createRequire(new URL("../../../.tools/isomorphic-git/", import.meta.url));
const git = require("isomorphic-git");
const http = require("isomorphic-git/http/node");

async function main(command, ...args) {
  const [url, dir] = args.length === 2 ? args : [undefined, args[0]];
  const options = { fs, http, dir };
  switch (command) {
    case "clone":
      return git.clone({ ...options, url, noCheckout: true });
    case "shallow":
      return git.clone({ ...options, url, noCheckout: true, depth: 1 });
    case "fetch":
      return git.fetch(options);
    case "push":
      return git.push({ ...options, ref: "main" });
    case "version":
      return console.log(git.version());
    default:
      process.exitCode = 64;
  }
}

try {
  await main(...process.argv.slice(2));
} catch (error) {
  console.error(`${error.name}: ${error.message}`);
  if (error.data?.statusCode) console.error(`data.statusCode: ${error.data.statusCode}`);
  process.exitCode = 1;
}
