'use strict';
// The page of a router: polls /admin/overview once a second and streams completions. No library, nothing fetched from elsewhere.

const $ = (id) => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';
const POLL_MS = 1000;
let adminKey = '';
let timer = 0;

function make(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return '–';
  if (value === 0) return '0';
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en');
  return String(Number(value.toPrecision(digits)));
}
const ms = (value) => (value === null || value === undefined ? '–' : number(value) + ' ms');

// --- charts ---

function line(values, top, width, height) {
  let path = '';
  let pen = false;
  values.forEach((value, i) => {
    if (value === null) { pen = false; return; }
    const x = 34 + (width - 38) * i / Math.max(1, values.length - 1);
    const y = 6 + (height - 22) * (1 - value / top);
    // A lone second is drawn as a dot: round caps make one of a line without length.
    path += `${pen ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}` + (pen ? '' : 'h0.01');
    pen = true;
  });
  return path;
}

function niceTop(most) {
  const unit = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= most);
}

function chart(id, name, unit, lines) {
  const svg = $(id);
  const width = 360, height = 130;
  const all = lines.flatMap((l) => l.values).filter((v) => v !== null);
  const top = niceTop(Math.max(...all, 1e-3, 1));
  svg.replaceChildren();
  for (const part of [0, 0.5, 1]) {
    const y = 6 + (height - 22) * (1 - part);
    const grid = document.createElementNS(SVG, 'line');
    for (const [k, v] of Object.entries({ x1: 34, x2: width - 4, y1: y, y2: y, class: 'grid' })) grid.setAttribute(k, v);
    const label = document.createElementNS(SVG, 'text');
    label.setAttribute('x', 30); label.setAttribute('y', y + 3); label.setAttribute('text-anchor', 'end');
    label.textContent = number(top * part);
    svg.append(grid, label);
  }
  for (const [x, text, anchor] of [[34, `${lines[0].values.length} s ago`, 'start'], [width - 4, 'now', 'end']]) {
    const label = document.createElementNS(SVG, 'text');
    label.setAttribute('x', x); label.setAttribute('y', height - 2); label.setAttribute('text-anchor', anchor);
    label.textContent = text;
    svg.append(label);
  }
  for (const l of lines) {
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('class', l.style);
    path.setAttribute('d', line(l.values, top, width, height));
    svg.append(path);
  }
  const last = lines.map((l) => {
    const known = l.values.filter((v) => v !== null);
    return `${l.name} ${known.length ? number(known[known.length - 1]) + ' ' + unit : 'none'}`;
  });
  svg.setAttribute('aria-label', `${name} over the last ${lines[0].values.length} seconds; last: ${last.join(', ')}`);
}

// --- overview ---

function cell(tag, label, content, style) {
  const node = make(tag, undefined, { 'data-label': label });
  if (tag === 'th') node.setAttribute('scope', 'row');
  if (style) node.className = style;
  node.append(content);
  return node;
}

function workerRow(w) {
  const row = make('tr');
  const used = w.total_blocks - w.free_blocks;
  const kv = make('span');
  if (w.total_blocks > 0) {
    const share = Math.round(100 * used / w.total_blocks);
    kv.append(make('meter', `${share} %`, {
      min: 0, max: w.total_blocks, value: used, high: Math.ceil(w.total_blocks * 0.9), 'aria-label': `KV of ${w.id}`,
    }), ` ${share} % of ${number(w.total_blocks)}`);
  } else {
    kv.append('–');
  }
  const style = { ready: 'good', 'not ready': 'bad', draining: 'wait', drained: 'wait' }[w.state];
  row.append(
    cell('th', 'Worker', w.id), cell('td', 'Role', w.role),
    cell('td', 'State', w.reason ? `${w.state}: ${w.reason}` : w.state, style),
    cell('td', 'Running', number(w.running)), cell('td', 'Waiting', number(w.waiting)),
    cell('td', 'Prompt tokens queued', number(w.queued_prefill_tokens)), cell('td', 'KV in use', kv),
    cell('td', 'Process', [w.pid ? `pid ${w.pid}` : '', w.version].filter(Boolean).join(', ') || '–'));
  return row;
}

function rows(table, list, empty) {
  const body = table.tBodies[0];
  if (list.length === 0) {
    const none = make('td', empty, { colspan: table.tHead.rows[0].cells.length, class: 'quiet' });
    const row = make('tr');
    row.append(none);
    list = [row];
  }
  body.replaceChildren(...list);
}

function show(o) {
  $('model').textContent = `${o.model} · ${o.version}`;
  setState(o.ready ? 'ready' : `not ready: ${o.reason}`, o.ready ? 'good' : 'bad');
  $('now-tokens').textContent = number(o.now.tokens_per_s);
  $('now-requests').textContent = number(o.now.requests_per_s);
  $('now-errors').textContent = number(o.now.errors_per_s);
  $('now-active').textContent = number(o.active);
  $('now-ttft50').textContent = ms(o.now.ttft_ms.p50);
  $('now-ttft99').textContent = ms(o.now.ttft_ms.p99);
  $('now-tpot50').textContent = ms(o.now.tpot_ms.p50);
  $('now-tpot99').textContent = ms(o.now.tpot_ms.p99);
  const s = o.series;
  chart('chart-tokens', 'Throughput', 'tokens/s', [{ name: 'tokens per second', values: s.tokens_per_s, style: 'a' }]);
  chart('chart-ttft', 'Time to first token', 'ms',
    [{ name: 'p50', values: s.ttft_p50_ms, style: 'a' }, { name: 'p99', values: s.ttft_p99_ms, style: 'b' }]);
  chart('chart-tpot', 'Time per output token', 'ms',
    [{ name: 'p50', values: s.tpot_p50_ms, style: 'a' }, { name: 'p99', values: s.tpot_p99_ms, style: 'b' }]);
  rows($('workers'), o.workers.map(workerRow), 'no worker is registered');
  rows($('moves'), o.moves.map((m) => {
    const row = make('tr');
    row.append(cell('th', 'From', m.from), cell('td', 'To', m.to), cell('td', 'Over', m.transport),
      cell('td', 'Prompts', number(m.requests)), cell('td', 'Blocks', number(m.blocks)));
    return row;
  }), 'nowhere yet: every prompt ran on its decode worker');
}

// Said again only when it changes, or a screen reader would repeat it every second.
function setState(text, style) {
  const state = $('state');
  if (state.textContent !== text) state.textContent = text;
  state.className = `state ${style}`;
}

function adminHeaders() { return adminKey ? { authorization: `Bearer ${adminKey}` } : {}; }

async function poll() {
  clearTimeout(timer);
  try {
    const answer = await fetch('/admin/overview', { headers: adminHeaders(), cache: 'no-store' });
    if (answer.status === 401 || answer.status === 403) {
      const why = await answer.json().catch(() => null);
      $('key-form').hidden = false;
      $('key-why').textContent = why && why.error ? why.error.message : '';
      setState('workers are hidden', 'bad');
      if (!adminKey || answer.status === 403) return;
      adminKey = '';
      return;
    }
    if (!answer.ok) throw new Error(`the router answers ${answer.status}`);
    $('key-form').hidden = true;
    show(await answer.json());
  } catch (error) {
    setState(`the router cannot be reached (${error.message})`, 'bad');
  }
  if (!document.hidden) timer = setTimeout(poll, POLL_MS);
}

$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  adminKey = $('admin-key').value.trim();
  poll();
});
document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });

// --- the completion box ---

let running = null;

function body() {
  const out = { stream: true, stream_options: { include_usage: true },
    max_tokens: Number($('max-tokens').value) || 200, temperature: Number($('temperature').value) };
  if ($('endpoint').value === 'chat') return { ...out, messages: [{ role: 'user', content: $('prompt').value }] };
  return { ...out, prompt: $('prompt').value };
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n');
    rest = parts.pop();
    for (const part of parts) if (part.startsWith('data: ')) yield part.slice(6);
  }
}

function fail(text) {
  $('answer').classList.add('error');
  $('answer').append(make('p', text));
}

async function send() {
  const started = performance.now();
  const headers = { 'content-type': 'application/json' };
  if ($('api-key').value) headers.authorization = `Bearer ${$('api-key').value}`;
  if ($('prefill').value) headers['x-aisp-prefill'] = $('prefill').value;
  $('answer').replaceChildren();
  $('answer').classList.remove('error');
  $('facts').hidden = true;
  running = new AbortController();
  $('send').disabled = true;
  $('stop').disabled = false;
  const path = $('endpoint').value === 'chat' ? '/v1/chat/completions' : '/v1/completions';
  let request = '';
  try {
    const answer = await fetch(path, { method: 'POST', headers, body: JSON.stringify(body()), signal: running.signal });
    request = answer.headers.get('x-request-id') || '';
    if (!answer.ok) {
      const error = await answer.json().catch(() => null);
      return fail(error && error.error ? error.error.message : `status ${answer.status}`);
    }
    let usage = null;
    for await (const data of events(answer.body)) {
      if (data === '[DONE]') break;
      const event = JSON.parse(data);
      if (event.error) fail(event.error.message);
      if (event.usage) usage = event.usage;
      for (const choice of event.choices || []) {
        const text = choice.delta ? choice.delta.content : choice.text;
        if (text) $('answer').append(text);
      }
      $('answer').scrollTop = $('answer').scrollHeight;
    }
    await facts(answer.headers, usage, request, performance.now() - started);
  } catch (error) {
    if (error.name !== 'AbortError') fail(error.message);
  } finally {
    running = null;
    $('send').disabled = false;
    $('stop').disabled = true;
  }
}

async function facts(headers, usage, request, took) {
  $('facts').hidden = false;
  const timing = usage && usage.aisp ? usage.aisp : null;
  $('fact-route').textContent = headers.get('x-aisp-route') || '–';
  $('fact-taken').textContent = timing ? timing.route_taken + (timing.fallback ? ` (${timing.fallback})` : '') : '–';
  $('fact-request').textContent = request;
  $('fact-tokens').textContent = usage
    ? `${usage.prompt_tokens} in, ${usage.completion_tokens} out in ${number(took)} ms` : '–';
  $('fact-ttft').textContent = timing ? ms(timing.ttft_ms) : '–';
  const names = [['frontend', 'frontend_ms'], ['queue', 'queue_ms'], ['prefill', 'prefill_ms'],
    ['transfer', 'transfer_ms'], ['first decode', 'first_decode_ms']];
  $('parts').replaceChildren();
  $('parts-legend').replaceChildren();
  if (timing) {
    const said = [];
    names.forEach(([name, key], i) => {
      const bar = make('span', '', { class: `p${i + 1}` });
      bar.style.width = `${100 * Math.max(0, timing[key]) / timing.ttft_ms}%`;
      $('parts').append(bar);
      const item = make('li');
      item.append(make('i', '', { class: `p${i + 1}` }), `${name} ${ms(timing[key])}`);
      $('parts-legend').append(item);
      said.push(`${name} ${ms(timing[key])}`);
    });
    $('parts').setAttribute('aria-label', said.join(', '));
  }
  await spans(request);
}

async function spans(request) {
  $('spans').replaceChildren();
  const answer = await fetch(`/admin/trace/${encodeURIComponent(request)}`, { headers: adminHeaders() });
  if (!answer.ok) return;
  const trace = await answer.json();
  const whole = Math.max(trace.spans[0].ms, 1e-6);
  for (const span of trace.spans) {
    const item = make('li', undefined, { class: (span.parent > 0 ? 'inner ' : '') + (span.error ? 'failed' : '') });
    const worker = span.attributes['aisp.worker'];
    const lane = make('span', undefined, { class: 'lane' });
    const bar = make('b');
    bar.style.left = `${100 * span.start_ms / whole}%`;
    bar.style.width = `${100 * span.ms / whole}%`;
    lane.append(bar);
    item.append(make('span', `${span.name} ${ms(span.ms)}${worker ? ' · ' + worker : ''}`, { class: 'name' }), lane);
    if (span.error) item.title = span.error;
    $('spans').append(item);
  }
}

$('try-form').addEventListener('submit', (event) => {
  event.preventDefault();
  if (!running) send();
});
$('stop').addEventListener('click', () => running && running.abort());
$('prompt').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) $('try-form').requestSubmit();
});
poll();
