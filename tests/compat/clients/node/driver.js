'use strict';
// Driver of the official Node client; the line protocol is in ../README.md.

const { createHash } = require('node:crypto');
const { createInterface } = require('node:readline');
const {
  ConsumeResult,
  FilterExpression,
  LitePushConsumerImpl,
  Producer,
  PushConsumer,
  SimpleConsumer,
} = require('rocketmq-client-nodejs');
// The client does not export these.
const {
  FilterType,
  TransactionResolution,
} = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const options = JSON.parse(process.argv[2]);
const quiet = { debug() {}, info() {}, warn() {}, error() {}, close() {} };
const base = {
  endpoints: options.endpoint,
  namespace: options.namespace,
  sessionCredentials: options.access_key
    ? { accessKey: options.access_key, accessSecret: options.secret_key }
    : undefined,
  sslEnabled: options.tls,
  requestTimeout: options.timeout_ms,
  logger: quiet,
};

const clients = new Map(); // name -> client
const listeners = new Map(); // name of a push consumer -> ScriptedListener
const checkers = new Map(); // name of a producer -> ScriptedChecker
const messages = new Map(); // reference number -> message view
const transactions = new Map(); // reference number -> transaction
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
    lite_topic: view.liteTopic || null,
    body_sha256: createHash('sha256').update(view.body).digest('hex'),
    body_size: view.body.length,
    properties: Object.fromEntries(view.properties),
    attempt: view.deliveryAttempt,
    offset: view.offset ?? null,
  };
}

/** A list that others wait for to grow. */
class Seen {
  constructor() {
    this.items = [];
    this.waiting = [];
  }

  add(item) {
    this.items.push(item);
    for (const check of [...this.waiting]) check();
  }

  wait(count, timeoutMs) {
    return new Promise((resolve) => {
      const finish = () => {
        clearTimeout(timer);
        this.waiting = this.waiting.filter((other) => other !== check);
        resolve([...this.items]);
      };
      const check = () => {
        if (this.items.length >= count) finish();
      };
      const timer = setTimeout(finish, timeoutMs);
      this.waiting.push(check);
      check();
    });
  }
}

/** Fails the first deliveries of each message id, then succeeds; remembers every delivery. */
class ScriptedListener {
  constructor(failures) {
    this.failures = failures;
    this.counts = new Map();
    this.deliveries = new Seen();
  }

  consume(view) {
    const count = (this.counts.get(view.messageId) || 0) + 1;
    this.counts.set(view.messageId, count);
    this.deliveries.add(report(view));
    const fails = this.failures < 0 || count <= this.failures;
    return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  }
}

const resolutions = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};

/** Answers every check alike; remembers the message ids. */
class ScriptedChecker {
  constructor(answer) {
    this.answer = resolutions[answer];
    this.checks = new Seen();
  }

  async check(view) {
    this.checks.add(view.messageId);
    return this.answer;
  }
}

function body(command) {
  const pattern = Buffer.from(command.body, 'base64');
  return command.size ? Buffer.alloc(command.size, pattern) : pattern;
}

function subscriptions(command) {
  const type = command.sql ? FilterType.SQL : FilterType.TAG;
  return new Map(
    Object.entries(command.subscriptions).map(([topic, expression]) => [
      topic,
      new FilterExpression(expression, type),
    ]),
  );
}

async function start(name, client) {
  await client.startup();
  clients.set(name, client);
  return {};
}

function message(c) {
  return {
    topic: c.topic,
    body: body(c),
    tag: c.tag ?? undefined,
    keys: c.keys ?? undefined,
    messageGroup: c.group ?? undefined,
    priority: c.priority ?? undefined,
    liteTopic: c.lite_topic ?? undefined,
    deliveryTimestamp: c.deliver_at_ms ? new Date(c.deliver_at_ms) : undefined,
    properties: c.properties ? new Map(Object.entries(c.properties)) : undefined,
  };
}

const operations = {
  producer(c) {
    if (c.checker) checkers.set(c.name, new ScriptedChecker(c.checker));
    const checker = checkers.get(c.name);
    return start(c.name, new Producer({ ...base, topics: c.topics, checker }));
  },

  async send(c) {
    const receipt = await clients.get(c.name).send(message(c));
    return {
      message_id: receipt.messageId,
      transaction_id: receipt.transactionId,
      offset: receipt.offset,
      recall_handle: receipt.recallHandle,
    };
  },

  async recall(c) {
    const receipt = await clients.get(c.name).recallMessage(c.topic, c.handle);
    return { message_id: receipt.messageId };
  },

  async send_half(c) {
    const producer = clients.get(c.name);
    const transaction = producer.beginTransaction();
    const receipt = await producer.send(message(c), transaction);
    lastRef += 1;
    transactions.set(lastRef, transaction);
    return {
      ref: lastRef,
      message_id: receipt.messageId,
      transaction_id: receipt.transactionId,
    };
  },

  async end(c) {
    await transactions.get(c.ref)[c.resolution]();
    return {};
  },

  async checked(c) {
    return { message_ids: await checkers.get(c.name).checks.wait(c.count, c.timeout_ms) };
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

  lite(c) {
    const listener = new ScriptedListener(c.failures);
    listeners.set(c.name, listener);
    return start(
      c.name,
      new LitePushConsumerImpl({
        ...base,
        bindTopic: c.topic,
        consumerGroup: c.group,
        subscriptions: new Map([[c.topic, new FilterExpression('*')]]),
        messageListener: listener,
      }),
    );
  },

  async subscribe_lite(c) {
    await clients.get(c.name).subscribeLite(c.lite_topic);
    return {};
  },

  async unsubscribe_lite(c) {
    await clients.get(c.name).unsubscribeLite(c.lite_topic);
    return {};
  },

  async lite_topics(c) {
    return { lite_topics: [...clients.get(c.name).getLiteTopicSet()].sort() };
  },

  async delivered(c) {
    return { messages: await listeners.get(c.name).deliveries.wait(c.count, c.timeout_ms) };
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
