// The formulas of scripts/sizing.py for the page beside it; tests/repo/test_sizing.py compares both.
'use strict';

const DEFAULTS = {
  messages_per_s: 1000, peak_factor: 3, body_bytes: 1000, properties_bytes: 200,
  messages_per_request: 1, consumer_groups: 1, retention_h: 72, tier: false, local_retention_h: 1,
  replicas: 3, zones: 3, storage_cores: 2, broker_cores: 2, disk_gb: 500, core_share_max: 0.6,
  core_month: 25, memory_gib_month: 3, disk_gb_month: 0.10, store_gb_month: 0.023,
  puts_1000: 0.005, gets_1000: 0.0004, zone_gb: 0.02,
};

// Names that say too little by themselves.
const LABELS = {
  core_month: 'price of a core, a month',
  memory_gib_month: 'price of a GiB of memory, a month',
  disk_gb_month: 'price of a GB of disk, a month',
  store_gb_month: 'price of a GB in the store, a month',
  puts_1000: 'price of 1,000 writes to the store',
  gets_1000: 'price of 1,000 reads from the store',
  zone_gb: 'price of a GB between zones',
  tier: 'old messages go to an object store',
  core_share_max: 'share of a core that the peak may use',
  storage_cores: 'cores of a storage machine',
  broker_cores: 'cores of a broker machine',
  disk_gb: 'GB of disk of a storage machine',
  storage_cores_used: 'storage: cores used at the peak',
  broker_cores_used: 'brokers: cores used at the peak',
  disk_gb_per_node: 'GB of disk used on a storage node',
  zone_gb_month: 'GB between zones, a month',
  store_gb: 'GB in the object store',
  puts_month: 'writes to the store, a month',
  gets_month: 'reads from the store, a month',
  cost_month: 'cost, a month',
};

function labelOf(name) {
  return LABELS[name] || name.replaceAll('_', ' ');
}

/** Return what a load takes; `given` has all names of DEFAULTS. */
function estimate(given) {
  const g = given;
  const GB = 1e9;
  const monthS = 30 * 86400;
  const fixedDisk = 785000000;
  const peak = g.messages_per_s * g.peak_factor;
  const operations = 1 + g.consumer_groups;
  const storageUs = 139.9 / g.messages_per_request + 24.1;
  const brokerUs = 116.6 / g.messages_per_request + 17.4;
  const storageCores = (peak * operations * storageUs * g.replicas) / 1e6;
  const brokerCores = (peak * operations * brokerUs) / 1e6;

  const message = g.body_bytes + g.properties_bytes;
  const keptH = g.tier ? Math.min(g.local_retention_h, g.retention_h) : g.retention_h;
  const log = message + 270 + 200 * g.consumer_groups;
  const rows = 600 * Math.min(keptH, 24) * 3600 + 100 * Math.max(keptH - 24, 0) * 3600;
  const disk = g.messages_per_s * (log * keptH * 3600 + rows) * g.replicas;
  const usable = g.disk_gb * GB * 0.7 - fixedDisk;
  const nodes = Math.max(
    g.replicas,
    1 + Math.ceil(storageCores / (g.storage_cores * g.core_share_max)),
    Math.ceil(disk / usable),
  );
  const brokers = Math.max(2, 1 + Math.ceil(brokerCores / (g.broker_cores * g.core_share_max)));

  const sent = g.messages_per_s * message;
  let betweenZones = 2 * ((g.zones - 1) / g.zones) * (sent + sent * g.consumer_groups);
  if (g.zones > 1) betweenZones += (g.replicas - 1) * sent;
  const tierBytes = g.tier ? g.messages_per_s * (message + 270) : 0;
  const objects = g.tier ? Math.max(tierBytes / 67108864, (nodes * 2) / 30) * monthS : 0;
  const result = {
    storage_cores_used: storageCores,
    broker_cores_used: brokerCores,
    storage_nodes: nodes,
    brokers,
    disk_gb_per_node: (disk / nodes + fixedDisk) / GB,
    memory_gib: nodes * g.storage_cores + brokers * g.broker_cores * 0.5 + 3 * 0.25,
    client_mb_per_s: (peak * message * operations) / 1e6,
    replication_mb_per_s: (peak * message * (g.replicas - 1)) / 1e6,
    zone_gb_month: (betweenZones * monthS) / GB,
    store_gb: (tierBytes * g.retention_h * 3600) / GB,
    puts_month: objects * 7,
    gets_month: objects * 3,
  };
  result.cost_month =
    (nodes * g.storage_cores + brokers * g.broker_cores + 3) * g.core_month +
    result.memory_gib * g.memory_gib_month +
    nodes * g.disk_gb * g.disk_gb_month +
    result.store_gb * g.store_gb_month +
    (result.puts_month / 1000) * g.puts_1000 +
    (result.gets_month / 1000) * g.gets_1000 +
    result.zone_gb_month * g.zone_gb;
  return result;
}

/** Fill the page: a field per input, a row per result, both by name. */
function show(page) {
  const inputs = page.getElementById('inputs');
  const results = page.getElementById('results');
  const fields = {};
  const refresh = () => {
    const given = {};
    for (const [name, field] of Object.entries(fields)) {
      given[name] = field.type === 'checkbox' ? field.checked : Number(field.value);
    }
    results.replaceChildren();
    for (const [name, value] of Object.entries(estimate(given))) {
      const row = results.insertRow();
      row.insertCell().textContent = labelOf(name);
      row.insertCell().textContent = value.toLocaleString('en', { maximumFractionDigits: 2 });
    }
  };
  for (const [name, value] of Object.entries(DEFAULTS)) {
    const row = inputs.insertRow();
    const label = page.createElement('label');
    label.textContent = labelOf(name);
    label.htmlFor = name;
    row.insertCell().append(label);
    const field = page.createElement('input');
    field.id = name;
    if (typeof value === 'boolean') {
      field.type = 'checkbox';
      field.checked = value;
    } else {
      field.type = 'number';
      field.min = '0';
      field.step = 'any';
      field.value = value;
    }
    field.addEventListener('input', refresh);
    row.insertCell().append(field);
    fields[name] = field;
  }
  refresh();
}

if (typeof document === 'undefined') {
  module.exports = { DEFAULTS, estimate };
} else {
  document.addEventListener('DOMContentLoaded', () => show(document));
}
