'use strict';
// Driver of the official Node client; the line protocol is in ../README.md.

const { createHash } = require('node:crypto');
const { createInterface } = require('node:readline');
const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const options = JSON.parse(process.argv[2]);
const quiet = { debug() {}, info() {}, warn() {}, error() {}, close() {} };
const base = {
  endpoints: options.endpoint,
  namespace: options.namespace,
  sslEnabled: options.tls,
  requestTimeout: options.timeout_ms,
  logger: quiet,
};

const clients = new Map(); // name -> client
const listeners = new Map(); // name of a push consumer -> ScriptedListener
const messages = new Map(); // reference number -> message view
let lastRef = 0;

/** What the client shows of a received message. */
function report(view) {
  lastRef += 1;
  messages.set(lastRef, view);
  return {
    ref: lastRef,
    message_id: view.messageId,
    topic: view.topic,
    tag: view.tag || null,
    keys: [...view.keys].sort(),
    group: view.messageGroup || null,
    body_sha256: createHash('sha256').update(view.body).digest('hex'),
    body_size: view.body.length,
    properties: Object.fromEntries(view.properties),
    attempt: view.deliveryAttempt,
    offset: view.offset ?? null,
  };
}

/** Fails the first deliveries of each message id, then succeeds; remembers every delivery. */
class ScriptedListener {
  constructor(failures) {
    this.failures = failures;
    this.seen = new Map();
    this.deliveries = [];
    this.waiting = [];
  }

  consume(view) {
    const seen = (this.seen.get(view.messageId) || 0) + 1;
    this.seen.set(view.messageId, seen);
    this.deliveries.push(report(view));
    for (const check of [...this.waiting]) check();
    const fails = this.failures < 0 || seen <= this.failures;
    return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  }

  wait(count, timeoutMs) {
    return new Promise((resolve) => {
      const finish = () => {
        clearTimeout(timer);
        this.waiting = this.waiting.filter((other) => other !== check);
        resolve([...this.deliveries]);
      };
      const check = () => {
        if (this.deliveries.length >= count) finish();
      };
      const timer = setTimeout(finish, timeoutMs);
      this.waiting.push(check);
      check();
    });
  }
}

function body(command) {
  const pattern = Buffer.from(command.body, 'base64');
  return command.size ? Buffer.alloc(command.size, pattern) : pattern;
}

function subscriptions(command) {
  return new Map(Object.entries(command.subscriptions));
}

async function start(name, client) {
  await client.startup();
  clients.set(name, client);
  return {};
}

const operations = {
  producer: (c) => start(c.name, new Producer({ ...base, topics: c.topics })),

  async send(c) {
    const receipt = await clients.get(c.name).send({
      topic: c.topic,
      body: body(c),
      tag: c.tag ?? undefined,
      keys: c.keys ?? undefined,
      messageGroup: c.group ?? undefined,
      properties: c.properties ? new Map(Object.entries(c.properties)) : undefined,
    });
    return {
      message_id: receipt.messageId,
      transaction_id: receipt.transactionId,
      offset: receipt.offset,
    };
  },

  simple: (c) =>
    start(
      c.name,
      new SimpleConsumer({
        ...base,
        consumerGroup: c.group,
        subscriptions: subscriptions(c),
        awaitDuration: c.await_ms,
      }),
    ),

  async receive(c) {
    const views = await clients.get(c.name).receive(c.max_messages, c.invisible_ms);
    return { messages: views.map(report) };
  },

  async ack(c) {
    await clients.get(c.name).ack(messages.get(c.ref));
    return {};
  },

  async change_invisible(c) {
    await clients.get(c.name).changeInvisibleDuration(messages.get(c.ref), c.invisible_ms);
    return {};
  },

  push(c) {
    const listener = new ScriptedListener(c.failures);
    listeners.set(c.name, listener);
    return start(
      c.name,
      new PushConsumer({
        ...base,
        consumerGroup: c.group,
        subscriptions: subscriptions(c),
        messageListener: listener,
      }),
    );
  },

  async delivered(c) {
    return { messages: await listeners.get(c.name).wait(c.count, c.timeout_ms) };
  },

  async close(c) {
    const client = clients.get(c.name);
    clients.delete(c.name);
    await client.shutdown();
    return {};
  },
};

/** Small numbers are gRPC's or the system's codes, not the server's. */
function describe(error) {
  const code = Number.isInteger(error.code) && error.code >= 20000 ? error.code : null;
  return { code, text: error.message, class: error.name };
}

async function answer(command) {
  let reply;
  try {
    reply = { result: await operations[command.op](command) };
  } catch (error) {
    reply = { error: describe(error) };
  }
  process.stdout.write(`${JSON.stringify({ id: command.id, ...reply })}\n`);
}

const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => answer(JSON.parse(line)));
lines.on('close', () => process.exit(0));
// The client rejects promises nobody waits for when a connection breaks.
process.on('unhandledRejection', (error) => process.stderr.write(`${error.stack}\n`));
